//! ONC RPC, portmap, MOUNT, NFSv3, NLM and NSM over the vfs trait.
