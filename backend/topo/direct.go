package topo

import (
	"bytes"
	"encoding/binary"
)

// Direct returns the path of the PCI function by which an RDMA device reaches memory of GPUs; nil if that is its own. A ConnectX-8 beside a Grace
// processor has a second function below the GPU's root port, Data Direct. The field V3 of the card's vital product data names
// both. Only root reads that file; without it a GPU's nearest devices are those of its NUMA node. NCCL and UCX ask
// mlx5dv_get_data_direct_sysfs_path, which needs an open device.
func (m *Machine) Direct(name string) PCIPath {
	if m.sys.FS == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.direct == nil {
		m.direct = m.readDirect()
	}
	return m.direct[name]
}

// readDirect finds the Data Direct functions of all devices. The product data of a card is slow to read, so a machine without such functions
// reads none.
func (m *Machine) readDirect() map[string]PCIPath {
	functions := map[string]PCIPath{} // by the identity of their card
	for _, address := range m.sys.names("bus/pci/drivers/mlx5_data_direct") {
		if _, err := parseAddress(address); err != nil {
			continue // bind, module
		}
		if id := m.sys.cardID(address); id != "" {
			functions[id] = m.Path(address)
		}
	}
	direct := map[string]PCIPath{}
	for _, r := range m.RDMA {
		if len(functions) > 0 && r.Driver == "mlx5_core" {
			if path := functions[m.sys.cardID(r.PCI.Addr())]; path != nil {
				direct[r.Name] = path
			}
		}
	}
	return direct
}

// cardID is the field V3 of a function's vital product data; "": unknown.
func (t tree) cardID(address string) string {
	return vpdField([]byte(t.bytes("bus/pci/devices/"+address+"/vpd")), "V3")
}

// Tags of vital product data (PCI Local Bus Specification 2.2, appendix I).
const (
	vpdLarge    = 0x80 // a large resource: two bytes of length follow
	vpdReadOnly = 0x90 // the large resource with the fields
	vpdEnd      = 0x78
)

// vpdField finds a field in vital product data; "" if it is not there, or the data is malformed.
func vpdField(data []byte, name string) string {
	for len(data) > 0 && data[0] != vpdEnd {
		tag, size, head := data[0], int(data[0]&7), 1
		if tag&vpdLarge != 0 {
			if len(data) < 3 {
				return ""
			}
			size, head = int(binary.LittleEndian.Uint16(data[1:])), 3
		}
		if len(data) < head+size {
			return ""
		}
		body := data[head : head+size]
		data = data[head+size:]
		for tag == vpdReadOnly && len(body) >= 3 && len(body) >= 3+int(body[2]) {
			key, value := string(body[:2]), body[3:3+int(body[2])]
			if key == name {
				return string(bytes.Trim(value, " \x00"))
			}
			body = body[3+len(value):]
		}
	}
	return ""
}
