from ..machine import memory_limit as memory_limit, memory_limits as memory_limits
from .residency import Eviction as Eviction, Residency as Residency, fits as fits
from .warming import Warming as Warming, warm_in_background as warm_in_background
