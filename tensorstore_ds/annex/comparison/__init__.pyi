from .chart import draw_comparison as draw_comparison
from .forecast import Forecast as Forecast
from .options import BenchOptions as BenchOptions
from .results import Comparison as Comparison
