from .convert import convert_on as convert_on
from .planned import Plan as Plan
from .slurm import SlurmJobs as SlurmJobs, slurm_script as slurm_script, submit_slurm as submit_slurm
from .tasks import TaskSummary as TaskSummary, commit as commit, convert_task as convert_task, plan as plan
