from .any_loader import LoaderDiagnosis as LoaderDiagnosis
from .options import DiagnoseOptions as DiagnoseOptions
from .results import Diagnosis as Diagnosis, Verdict as Verdict
