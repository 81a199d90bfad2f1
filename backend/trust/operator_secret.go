package trust

import (
	"bytes"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"errors"
	"fmt"

	"gorail/backend/wire"
)

const (
	leastSecret = 32 // bytes of a line
	mostSecrets = 16 // each costs a MAC a proof
)

// secretLabel keeps keys and MACs of other purposes and versions apart.
var secretLabel = fmt.Sprintf("gorail secret %d", wire.Version)

// parseSecrets makes a key of each line of secret_file. Blank lines, and lines that begin with '#', do not count; nor do
// spaces around a line.
func parseSecrets(files []file, texts [][]byte) (keys []Secret, err error) {
	fail := func(line int, format string, args ...any) ([]Secret, error) {
		return nil, fmt.Errorf("%s=%s, line %d: %w", files[0].option, files[0].path, line, fmt.Errorf(format, args...))
	}
	for i, line := range bytes.Split(texts[0], []byte("\n")) {
		switch line = bytes.TrimSpace(line); {
		case len(line) == 0 || line[0] == '#':
			continue
		case len(line) < leastSecret:
			return fail(i+1, "a secret of %d bytes, at least %d; make one with: openssl rand -base64 32", len(line), leastSecret)
		case len(keys) == mostSecrets:
			return fail(i+1, "more than %d secrets; remove old ones", mostSecrets)
		}
		prk, err := hkdf.Extract(sha256.New, line, []byte(secretLabel))
		if err != nil {
			return fail(i+1, "%w", err)
		}
		keys = append(keys, Secret(prk))
	}
	if len(keys) == 0 {
		return nil, fmt.Errorf("%s=%s: %w", files[0].option, files[0].path, errors.New("file has no secret; make one with: openssl rand -base64 32"))
	}
	return keys, nil
}

// secretMac proves that its sender has a line of secret_file.
func secretMac(key Secret, as Role, x Binding, ends Ends) []byte {
	h := hmac.New(sha256.New, key[:])
	h.Write(statement(secretLabel, as, x, ends))
	return h.Sum(nil)
}

// matching returns the line that made a MAC, -1 for none.
func matching(keys []Secret, of Role, x Binding, ends Ends, mac []byte) int {
	found := -1
	for i, k := range keys {
		if hmac.Equal(mac, secretMac(k, of, x, ends)) {
			found = i
		}
	}
	return found
}
