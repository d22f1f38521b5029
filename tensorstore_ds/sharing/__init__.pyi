from .transfer import Transfer as Transfer
