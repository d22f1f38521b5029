from .add import FieldsSummary as FieldsSummary, add_fields as add_fields, drop_fields as drop_fields
from .append import GrowthSummary as GrowthSummary
from .compare import (
    SampleCount as SampleCount,
    SplitDifference as SplitDifference,
    StoreDifference as StoreDifference,
    compare_stores as compare_stores,
)
from .compare_files import FolderDifference as FolderDifference, compare_folder as compare_folder
from .edit import (
    filter_store as filter_store,
    merge_stores as merge_stores,
    relabel_store as relabel_store,
    sample_store as sample_store,
    split_store as split_store,
)
from .erase import ErasureSummary as ErasureSummary
from .field_files import add_file as add_file
from .folds import Fold as Fold, Folds as Folds
from .keys import find_keys as find_keys
from .receipts import ReceiptCheck as ReceiptCheck, check_receipt as check_receipt
