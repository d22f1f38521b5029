from .export import ExportSummary as ExportSummary
from .formats import EXPORT_FORMATS as EXPORT_FORMATS
