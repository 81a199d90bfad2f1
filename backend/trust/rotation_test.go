package trust

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"gorail/backend/wire"
)

// names returns the names that an operator proves now.
func names(t *testing.T, b *bench) []string {
	id, err := b.Prove(Initiator, binding, ends, nil)
	require.NoError(t, err)
	chain, err := parseChain(id.Chain)
	require.NoError(t, err)
	return namesOf(chain[0])
}

// TestLinkSwap: files behind a link that is swapped, as Kubernetes renews a secret, are read together at the next
// handshake, a second later at the earliest. A second look reads nothing.
func TestLinkSwap(t *testing.T) {
	ca := newAuthority(t, "ca")
	b := newBench(t)
	version := func(n int) {
		dir := filepath.Join(b.dir, fmt.Sprintf("..%d", n))
		require.NoError(t, os.Mkdir(dir, 0o700))
		cert, key := ca.issue(ed25519Key(t), withDNS(fmt.Sprintf("v%d.example", n)))
		for name, text := range map[string]string{"ca.crt": ca.pem(), "tls.crt": cert, "tls.key": key} {
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
		}
		require.NoError(t, os.Symlink(filepath.Base(dir), filepath.Join(b.dir, "new")))
		require.NoError(t, os.Rename(filepath.Join(b.dir, "new"), filepath.Join(b.dir, "..data")))
	}
	version(1)
	for name, path := range map[string]*string{"ca.crt": &b.cfg.CA, "tls.crt": &b.cfg.Cert, "tls.key": &b.cfg.Key} {
		*path = filepath.Join(b.dir, name)
		require.NoError(t, os.Symlink("..data/"+name, *path))
	}
	b.open()
	assert.EqualValues(t, 1, b.Generation())
	version(2)
	b.now = b.now.Add(every - 1)
	assert.EqualValues(t, 1, b.Generation(), "within a second")
	assert.Equal(t, []string{"v1.example"}, names(t, b))
	b.now = b.now.Add(1)
	assert.Equal(t, []string{"v2.example"}, names(t, b))
	assert.EqualValues(t, 2, b.Generation())
	seen := b.certs.seen
	b.certs.seen = [32]byte{} // a read would find this
	assert.EqualValues(t, 2, b.later().Generation())
	assert.Zero(t, b.certs.seen, "unchanged files are not read")
	b.certs.seen = seen
	require.NoError(t, os.Chtimes(b.cfg.Key, start, start))
	assert.EqualValues(t, 2, b.later().Generation(), "the same contents are no change")
	assert.Zero(t, b.warned("cannot be used"))
}

// TestHalfWritten: while certificate and key do not fit, or one is cut off or gone, the old pair stays in use, and each
// change warns once. The secret is renewed meanwhile.
func TestHalfWritten(t *testing.T) {
	ca := newAuthority(t, "ca")
	cert, key := ca.issue(ed25519Key(t), withDNS("old.example"))
	b := newBench(t).pemFiles(ca.pem(), cert, key).secretLines(strings.Repeat("s", 32)).open()
	cert2, key2 := ca.issue(ed25519Key(t), withDNS("new.example"))
	for i, bad := range []func(){
		func() { b.write("cert.pem", cert2) },
		func() { b.write("cert.pem", cert2[:100]) },
		func() { b.write("cert.pem", "") },
		func() { require.NoError(t, os.Remove(b.cfg.Cert)) },
		func() { b.write("cert.pem", cert); b.write("ca.pem", ca.pem()[:len(ca.pem())-9]) },
	} {
		bad()
		for range 3 {
			assert.Equal(t, []string{"old.example"}, names(t, b.later()))
		}
		assert.Equal(t, i+1, b.warned("the old contents stay in use"), b.log.String())
		assert.EqualValues(t, 1, b.Generation())
	}
	b.secretLines(strings.Repeat("t", 32))
	assert.EqualValues(t, 2, b.later().Generation())
	b.pemFiles(ca.pem(), cert, key)
	assert.EqualValues(t, 2, b.later().Generation(), "as before")
	b.pemFiles(ca.pem(), cert2, key2)
	assert.Equal(t, []string{"new.example"}, names(t, b.later()))
	assert.EqualValues(t, 3, b.Generation())
	assert.Equal(t, 5, b.warned("the old contents stay in use"))
}

// TestNewCA: a renewed tls_ca holds for the next check.
func TestNewCA(t *testing.T) {
	old, next := newAuthority(t, "old"), newAuthority(t, "next")
	b, peer := certified(t, old), certified(t, next)
	_, err := check(t, peer.Operator, b.Operator, Initiator)
	require.ErrorIs(t, err, ErrChain)
	b.write("ca.pem", old.pem()+next.pem())
	_, err = check(t, peer.Operator, b.later().Operator, Initiator)
	assert.NoError(t, err)
	b.write("ca.pem", next.pem())
	_, err = check(t, certified(t, old).Operator, b.later().Operator, Initiator)
	assert.ErrorIs(t, err, ErrChain)
	assert.Equal(t, 1, b.warned("peers with the same tls_ca refuse our own certificate"))
}

// TestSameStamp: contents that change within the step of the file system's clock are found: a file that changed a moment
// ago is read again.
func TestSameStamp(t *testing.T) {
	b := newBench(t).secretLines(strings.Repeat("s", 32)).open()
	s := &b.secrets
	require.True(t, s.stable)
	swap := func(text string) (changed bool) {
		b.secretLines(strings.Repeat(text, 32))
		s.stamps = s.stampAll() // as if nothing had changed
		changed, err := s.look(b.now)
		require.NoError(t, err)
		return changed
	}
	assert.False(t, swap("t"), "stamps are believed when they are old")
	s.stable = false
	assert.True(t, swap("u"))
	info, err := os.Stat(b.cfg.SecretFile)
	require.NoError(t, err)
	b.secretLines(strings.Repeat("v", 32))
	_, err = s.look(info.ModTime().Add(settles / 2))
	require.NoError(t, err)
	assert.False(t, s.stable, "a file that changed a second ago")

	// It is read again, and warned of once.
	b.secretLines("short")
	for i := range 3 {
		_, err = s.look(info.ModTime())
		assert.Equal(t, i == 0, err != nil, err)
		assert.False(t, s.stable)
	}
}

// TestSlowFiles: while one handshake looks at files that do not answer, others use what is held. A clock that was set back
// does not stop the looks.
func TestSlowFiles(t *testing.T) {
	b := newBench(t).secretLines(strings.Repeat("s", 32)).open()
	b.secretLines(strings.Repeat("t", 32)).later()
	b.looking.Lock()
	assert.EqualValues(t, 1, b.Generation())
	_, err := check(t, b.Operator, b.Operator, Initiator)
	assert.NoError(t, err)
	b.looking.Unlock()
	b.now = b.now.Add(-1e4 * every)
	assert.EqualValues(t, 2, b.Generation())
}

// TestSecretRotation: two operators change their secret line by line, at different times. At each step both directions
// work, and the target answers with the initiator's line.
func TestSecretRotation(t *testing.T) {
	old, next := strings.Repeat("o", 32), strings.Repeat("n", 40)
	a, b := newBench(t).secretLines("# the first", "", "  "+old+"\r").open(), newBench(t).secretLines(old).open()
	meet := func(i, j *bench) error {
		hello, err := i.Prove(Initiator, binding, ends, nil)
		require.NoError(t, err)
		if _, err := j.Check(Initiator, binding, ends, &hello); err != nil {
			return err
		}
		welcome, err := j.Prove(Target, binding, ends, &hello)
		require.NoError(t, err)
		_, err = i.Check(Target, binding, ends, &welcome)
		return err
	}
	for _, step := range [][]string{{old}, {old, next}, {next, old}, {next}} {
		for _, changed := range []*bench{a, b} {
			changed.secretLines(step...).later()
			assert.NoError(t, meet(a, b), step)
			assert.NoError(t, meet(b, a), step)
		}
	}
	assert.NoError(t, meet(newBench(t).secretLines(old).open(), newBench(t).secretLines(next, old).open()), "the answer is not the first line")
	b.secretLines(old).later()
	err := meet(a, b)
	assert.ErrorIs(t, err, ErrSecret)
	assert.EqualError(t, err, "the secrets differ: no line of secret_file at the target matches the initiator's; "+
		"add the first line of the file at the initiator to the file at the target")
	hello, err := a.Prove(Initiator, binding, ends, nil)
	require.NoError(t, err)
	_, err = b.Prove(Target, binding, ends, &hello)
	assert.ErrorIs(t, err, ErrSecret, "nothing to answer with")
	_, err = b.Prove(Target, binding, ends, &wire.Identity{})
	assert.ErrorIs(t, err, ErrSecret)
}

// TestTogether: proofs, checks and changes of the files at the same time; each proof is whole.
func TestTogether(t *testing.T) {
	ca := newAuthority(t, "ca")
	b := certified(t, ca)
	b.cfg.Now = nil // every look of a second reads
	b.open()
	checker := certified(t, ca)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 50 {
				id, err := b.Prove(Target, binding, ends, nil)
				if assert.NoError(t, err) {
					_, err = checker.Check(Target, binding, ends, &id)
					assert.NoError(t, err)
				}
				b.Generation()
			}
		})
	}
	for range 10 {
		cert, key := ca.issue(ed25519Key(t))
		b.write("cert.pem", cert)
		b.write("key.pem", key)
		b.looking.Lock()
		b.looked = start.Add(-1e6 * every)
		b.looking.Unlock()
	}
	wg.Wait()
}
