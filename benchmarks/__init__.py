"""What `make bench` runs: the same workloads on qnnkit and on its peers. No part of the package."""
