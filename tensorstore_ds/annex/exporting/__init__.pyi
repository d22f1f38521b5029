from .export import ExportSummary as ExportSummary
from .formats import EXPORT_FORMATS as EXPORT_FORMATS
from .sample_table import write_table as write_table
