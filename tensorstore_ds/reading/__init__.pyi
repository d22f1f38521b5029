from .columns import Ragged as Ragged
from .mirror_cache import CachedStore as CachedStore, cached_stores as cached_stores, clear_cache as clear_cache
from .store_files import check_outside_stores as check_outside_stores
