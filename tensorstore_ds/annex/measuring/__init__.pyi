from .any_loader import LoaderDiagnosis as LoaderDiagnosis
from .bench_options import BenchOptions as BenchOptions
from .bench_results import Comparison as Comparison
from .diagnose_options import DiagnoseOptions as DiagnoseOptions
from .diagnosis_results import Diagnosis as Diagnosis, Verdict as Verdict
from .forecast import Forecast as Forecast
