package region

import (
	"fmt"

	"gorail/backend/gpu"
	"gorail/backend/provider"
	"gorail/backend/rails"
)

// An application may map other memory at an address of host memory that is lent over NVLink (provider.Lender.TakesHost), or unmap it. Other rails have the
// addresses, so the region stays with them, and leaves the rail that has the former memory: peers unmap that. It is lent again when it is registered anew.

// lent are the rails of NVLink between hosts that have a region of host memory.
func (m *Registry) lent(r *Region) (on uint64) {
	if r.Mem != DRAM || r.Slices != nil || !r.filled.Load() {
		return 0
	}
	for i, rl := range m.set.List {
		if i < len(r.mrs) && r.mrs[i] != nil && rl.Can().VRAMOnly {
			on |= 1 << i
		}
	}
	return on
}

// unlend looks at lent host memory, without a lock: see look.
func (m *Registry) unlend() {
	type lending struct {
		r  *Region
		on uint64
		is []provider.MR
	}
	var list []lending
	m.mu.Lock()
	for r := range m.each() {
		l := lending{r: r, on: m.lent(r)}
		for i := range m.set.List {
			if l.on&(1<<i) == 0 {
				continue
			}
			if is, has := r.mrs[i].Handle(); has {
				l.is = append(l.is, is)
			}
		}
		if len(l.is) > 0 {
			list = append(list, l)
		}
	}
	m.mu.Unlock()
	for _, l := range list {
		for _, is := range l.is {
			if err := is.Same(); gpu.Is(err, gpu.Changed) || gpu.Is(err, gpu.Unmapped) { // else the driver does not answer
				m.unlendOne(l.r, l.on)
				break
			}
		}
	}
}

// unlendOne takes a region off those rails. Peers that do not answer are not waited for: the owner confirms each copy.
func (m *Registry) unlendOne(r *Region, on uint64) {
	m.renewals.Lock()
	defer m.renewals.Unlock()
	former := make([]*rails.Ref[provider.MR], len(m.set.List))
	holders := map[*Holder][]uint64{}
	m.mu.Lock()
	if on &= m.lent(r); r.refs == 0 || on == 0 { // deregistered meanwhile
		m.mu.Unlock()
		return
	}
	for i := range r.mrs {
		if on&(1<<i) != 0 {
			former[i], r.mrs[i] = r.mrs[i], nil
		}
	}
	r.Rails.And(^on)
	for _, t := range m.holders.take(r.ID) {
		holders[t] = append(holders[t], r.ID)
	}
	m.mu.Unlock()
	for i := range former {
		if former[i] != nil {
			r.Core.ClearKey(i)
		}
	}
	m.log.Info("other host memory is mapped at registered addresses, or none: peers give up what they have mapped over NVLink, and transfers go over other rails until it is registered anew",
		"first", fmt.Sprintf("%#x", r.Addr), "bytes", r.Len)
	renewed(holders)
	for i := range former {
		if former[i] != nil {
			_, err := m.set.List[i].Cache(r.Access).Release(former[i])
			_ = m.released(i, err) // logs it
		}
	}
}
