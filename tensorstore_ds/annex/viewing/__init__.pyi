from .view import export_view as export_view
