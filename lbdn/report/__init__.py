"""The report: published values, tables, figures, and the page that shows them."""
