package wire

import (
	"fmt"
	"net/netip"
)

// The checks below ignore a frame's version: the reader decides about versions, and answers with a Reject.

func (*Challenge) check() error { return nil }
func (*Revoked) check() error   { return nil }
func (*Ping) check() error      { return nil }
func (*Pong) check() error      { return nil }
func (*Drain) check() error     { return nil }
func (*Drained) check() error   { return nil }
func (*Open) check() error      { return nil }

func (f *Resume) check() error  { return f.Identity.check() }
func (f *Resumed) check() error { return f.Identity.check() }

func (i *Identity) check() error {
	err := firstError(limit("certificates", len(i.Chain), MaxChain), limit("bytes of a signature", len(i.Signature), MaxCert),
		limit("bytes of a MAC", len(i.Secret), len(Mac{})))
	for _, c := range i.Chain {
		err = firstError(err, limit("bytes of a certificate", len(c), MaxCert))
	}
	return err
}

func (f *Hello) check() error {
	return firstError(limit("agent name", len(f.Agent), MaxName), limit("boot id", len(f.Boot), MaxText), checkOffers(f.Offers), f.Identity.check())
}

func (f *Welcome) check() error {
	return firstError(limit("agent name", len(f.Agent), MaxName), checkHave(f.Have), checkOffers(f.Offers), f.Identity.check())
}

func (f *Reject) check() error { return limit("text", len(f.Text), MaxText) }
func (f *Bye) check() error    { return limit("text", len(f.Text), MaxText) }
func (f *Fence) check() error {
	return firstError(limit("endpoint address", len(f.Addr), MaxAddr), limit("new links", len(f.New), 1))
}
func (f *Revoke) check() error { return limit("regions", len(f.Regions), MaxRevoke) }

func (f *Wider) check() error { return limit("rails", len(f.Rails), MaxRails) }

func (f *Moved) check() error {
	if len(f.Control) == 0 {
		return fmt.Errorf("%w: an engine has moved to no control address", ErrFormat)
	}
	return checkControl(f.Control)
}

func checkControl(addrs []string) error {
	if err := limit("control addresses", len(addrs), MaxControl); err != nil { //limit:control_addresses
		return err
	}
	for _, a := range addrs {
		if _, err := netip.ParseAddrPort(a); err != nil {
			return fmt.Errorf("%w: control address %q: want ip:port", ErrFormat, a)
		}
	}
	return nil
}

func (f *Fenced) check() error {
	return firstError(limit("endpoint address", len(f.Addr), MaxAddr), limit("notifications", len(f.Have), MaxHave))
}

func (f *KeysReq) check() error {
	if err := limit("ranges", len(f.Ranges), MaxRanges); err != nil {
		return err
	}
	for _, r := range f.Ranges {
		if r.Addr+r.Len < r.Addr {
			return fmt.Errorf("%w: %d bytes at %#x run past the end of the address space", ErrFormat, r.Len, r.Addr)
		}
	}
	return nil
}

func (f *Keys) check() error {
	if err := limit("entries", len(f.Entries), MaxRanges); err != nil {
		return err
	}
	for _, e := range f.Entries {
		if err := checkRails(e.Rails); err != nil {
			return err
		}
		if !e.Known && (e.Region != 0 || e.Gen != 0 || len(e.Rails) != 0) {
			return fmt.Errorf("%w: keys of an unknown region", ErrFormat)
		}
	}
	return nil
}

func checkRails(keys []RailKey) error {
	next := 0
	for _, k := range keys {
		if err := limit("number of a rail", int(k.Rail), MaxKeyRails-1); err != nil {
			return err
		}
		if int(k.Rail) < next {
			return fmt.Errorf("%w: keys of a region: rail %d not in order", ErrFormat, k.Rail)
		}
		next = int(k.Rail) + 1
	}
	return nil
}

func checkHave(have []uint16) error {
	last := uint16(0)
	for _, d := range have {
		if d <= last {
			return fmt.Errorf("%w: notification distances are not ascending: %d after %d", ErrFormat, d, last)
		}
		last = d
	}
	return limit("notifications", len(have), MaxHave)
}

func checkOffers(offers []EndpointOffer) error {
	if err := limit("offers", len(offers), MaxRails); err != nil {
		return err
	}
	for _, o := range offers {
		if err := limit("endpoint address", len(o.Addr), MaxAddr); err != nil {
			return err
		}
	}
	return nil
}
