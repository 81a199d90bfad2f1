package core

// #include "base.h"
import "C"

import "unsafe"

// The layout of a message's header in bytes, as the core writes and reads it. Package wire must have the same layout; a
// test compares.
const (
	HeaderSize    = C.sizeof_header
	HeaderMagic   = C.MAGIC
	HeaderVersion = C.VERSION
	KindProbe     = C.KIND_PROBE
	KindSkip      = C.KIND_SKIP

	OffMagic   = unsafe.Offsetof(C.header{}.magic)
	OffVersion = unsafe.Offsetof(C.header{}.version)
	OffKind    = unsafe.Offsetof(C.header{}.kind)
	OffSubs    = unsafe.Offsetof(C.header{}.subs)
	OffSub     = unsafe.Offsetof(C.header{}.sub)
	OffSeq     = unsafe.Offsetof(C.header{}.seq)
	OffTotal   = unsafe.Offsetof(C.header{}.total)
	OffOffset  = unsafe.Offsetof(C.header{}.offset)
	OffCount   = unsafe.Offsetof(C.header{}.count)
	OffSum     = unsafe.Offsetof(C.header{}.sum)
	OffTo      = unsafe.Offsetof(C.header{}.to)
)
