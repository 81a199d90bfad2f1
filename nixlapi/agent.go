package nixlapi

// Agent is a nixlAgent. Close ends it.
type Agent struct {
	name     string
	h        ptr
	notifs   ptr // reused by every Notifs call
	backends []*Backend
}

// Backend is a nixlBackendH. It belongs to its agent and ends with it.
type Backend struct {
	name string
	h    ptr
}

// Name returns the plugin's name.
func (b *Backend) Name() string { return b.name }

// handle returns nil if the agent should choose.
func (b *Backend) handle() ptr {
	if b == nil {
		return nil
	}
	return b.h
}

// NewAgent implements nixl_capi_create_configured_agent. The caller closes the agent.
func (l *Lib) NewAgent(name string, cfg Config) (*Agent, error) {
	h, s := cCreateAgent(name, cfg)
	if s != Success {
		return nil, s.Err("create_configured_agent")
	}
	m, s := cNotifMap()
	if s != Success {
		cDestroyAgent(h)
		return nil, s.Err("create_notif_map")
	}
	return &Agent{name: name, h: h, notifs: m}, nil
}

// Name returns the agent's name.
func (a *Agent) Name() string { return a.name }

// Close implements nixl_capi_destroy_agent. Requests must be released before.
func (a *Agent) Close() error {
	if a.h == nil {
		return nil
	}
	for _, b := range a.backends {
		cDestroyBackend(b.h) // only the handle: the agent owns the backend
	}
	cDestroyNotifMap(a.notifs)
	s := cDestroyAgent(a.h)
	a.h, a.notifs, a.backends = nil, nil, nil
	return s.Err("destroy_agent")
}

// Plugins implements nixl_capi_get_available_plugins.
func (a *Agent) Plugins() ([]string, error) {
	p, s := cPlugins(a.h)
	return p, s.Err("get_available_plugins")
}

// PluginParams implements nixl_capi_get_plugin_params: options with defaults.
func (a *Agent) PluginParams(plugin string) (map[string]string, []Mem, error) {
	p, m, s := cPluginParams(a.h, plugin)
	return p, m, s.Err("get_plugin_params")
}

// CreateBackend implements nixl_capi_create_backend.
func (a *Agent) CreateBackend(plugin string, params map[string]string) (*Backend, error) {
	h, s := cCreateBackend(a.h, plugin, params)
	if s != Success {
		return nil, s.Err("create_backend")
	}
	b := &Backend{name: plugin, h: h}
	a.backends = append(a.backends, b)
	return b, nil
}

// BackendParams implements nixl_capi_get_backend_params.
func (a *Agent) BackendParams(b *Backend) (map[string]string, []Mem, error) {
	p, m, s := cBackendParams(a.h, b.h)
	return p, m, s.Err("get_backend_params")
}
