package nixlapi

// Metadata implements nixl_capi_get_local_md: connection info and all regions.
func (a *Agent) Metadata() ([]byte, error) {
	md, s := cLocalMD(a.h)
	return md, s.Err("get_local_md")
}

// PartialMetadata implements nixl_capi_get_local_partial_md for the given regions. Without regions the result is only
// the connection info.
func (a *Agent) PartialMetadata(mem Mem, d []Desc, b *Backend) ([]byte, error) {
	var md []byte
	s := withRegList(mem, d, "", func(l ptr) Status {
		return withOpt(b, nil, false, func(o ptr) (s Status) {
			md, s = cPartialMD(a.h, l, o)
			return s
		})
	})
	return md, s.Err("get_local_partial_md")
}

// ConnInfo returns the partial metadata of no region.
func (a *Agent) ConnInfo() ([]byte, error) { return a.PartialMetadata(DRAM, nil, nil) }

// Load implements nixl_capi_load_remote_md and returns the remote's name.
func (a *Agent) Load(md []byte) (string, error) {
	name, s := cLoadMD(a.h, md)
	return name, s.Err("load_remote_md")
}

// Send implements nixl_capi_send_local_md: the agent writes its metadata to the etcd server that NIXL_ETCD_ENDPOINTS named when the
// agent was made. A thread of the agent does it soon after.
func (a *Agent) Send() error { return cSendMD(a.h).Err("send_local_md") }

// Withdraw implements nixl_capi_invalidate_local_md: the agent removes its metadata from the etcd server, soon after.
func (a *Agent) Withdraw() error { return cWithdrawMD(a.h).Err("invalidate_local_md") }

// Fetch implements nixl_capi_fetch_remote_md: the agent reads a remote's metadata from the etcd server, soon after. Knows tells when.
func (a *Agent) Fetch(remote string) error { return cFetchMD(a.h, remote).Err("fetch_remote_md") }

// Invalidate implements nixl_capi_invalidate_remote_md.
func (a *Agent) Invalidate(remote string) error {
	return cInvalidate(a.h, remote).Err("invalidate_remote_md")
}

// Knows implements nixl_capi_check_remote_md with no ranges. The agent itself forgets a remote only after
// NIXL_ERR_REMOTE_DISCONNECT. The C API does not distinguish that status from other errors, but Knows does.
func (a *Agent) Knows(remote string) bool { return cCheckRemote(a.h, remote, nil) == Success }

// Connect implements nixl_capi_agent_make_connection.
func (a *Agent) Connect(remote string, b *Backend) error {
	return withOpt(b, nil, false, func(o ptr) Status {
		return cConnect(a.h, remote, o)
	}).Err("agent_make_connection")
}
