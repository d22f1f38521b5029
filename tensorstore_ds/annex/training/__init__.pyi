from .checkpoint import load_model as load_model
from .data import task_of as task_of
from .detections import StoreDetections as StoreDetections, predict_store as predict_store
from .history import EpochRecord as EpochRecord, Listeners as Listeners, TrainProgress as TrainProgress
from .learner import Learner as Learner
from .options import DetectorOptions as DetectorOptions, TrainOptions as TrainOptions, ViTOptions as ViTOptions
from .prediction import Prediction as Prediction
from .probabilities import predict_probabilities as predict_probabilities, write_probabilities as write_probabilities
from .report import TrainReport as TrainReport
from .row_predictions import Evaluation as Evaluation, add_predictions as add_predictions, evaluate as evaluate
from .vit import ViT as ViT
