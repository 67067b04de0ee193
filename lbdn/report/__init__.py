"""The report: published values, tables, figures, and the page that shows them."""

from lbdn.extras import require

require("the report", "study", "jinja2", "matplotlib", "pandas", "seaborn", "tabulate")
