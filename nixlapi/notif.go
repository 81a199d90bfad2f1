package nixlapi

// Notifs implements nixl_capi_get_notifs: all notifications since the last call, in order per sender.
func (a *Agent) Notifs() ([]Notif, error) {
	n, s := cNotifs(a.h, a.notifs)
	return n, s.Err("get_notifs")
}

// GenNotif implements nixl_capi_gen_notif. If b is nil, the agent chooses the backend.
func (a *Agent) GenNotif(remote string, msg []byte, b *Backend) error {
	return withOpt(b, nil, false, func(o ptr) Status {
		return cGenNotif(a.h, remote, msg, o)
	}).Err("gen_notif")
}
