"""The host process of an emulated cloud: VMs as processes, preemptions, the object store, clean-up."""
