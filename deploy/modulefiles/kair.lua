-- Lmod: `module load kair`. Change `root` to the folder that deploy/offline/install.sh installed into.
local root = "/opt/kair"
help([[Kair shows which rank slows a distributed training job down: kair triage TRACES]])
whatis("Name: kair")
whatis("Description: which rank slows a distributed training job down, in which operator, why, and what it costs")
prepend_path("PATH", pathJoin(root, "bin"))
