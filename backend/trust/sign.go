package trust

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/sha512"
	"crypto/tls"
	"fmt"
)

// Bits of RSA keys. The most bound what a check costs.
const (
	leastRSA = 2048
	mostRSA  = 4096
)

// rsaBits returns the bits of an RSA key, 0 for others.
func rsaBits(key crypto.PublicKey) int {
	if k, ok := key.(*rsa.PublicKey); ok {
		return k.N.BitLen()
	}
	return 0
}

// algorithmOf returns the one algorithm that GORAIL signs with for a key.
func algorithmOf(key crypto.PublicKey) (tls.SignatureScheme, error) {
	switch k := key.(type) {
	case ed25519.PublicKey:
		return tls.Ed25519, nil
	case *ecdsa.PublicKey:
		switch k.Curve {
		case elliptic.P256():
			return tls.ECDSAWithP256AndSHA256, nil
		case elliptic.P384():
			return tls.ECDSAWithP384AndSHA384, nil
		}
	case *rsa.PublicKey:
		if bits := rsaBits(k); bits >= leastRSA && bits <= mostRSA {
			return tls.PSSWithSHA256, nil
		}
	}
	return 0, fmt.Errorf("a certificate's key must be Ed25519, ECDSA P-256 or P-384, or RSA of %d to %d bits", leastRSA, mostRSA)
}

// pss has the parameters of TLS 1.3.
var pss = &rsa.PSSOptions{SaltLength: rsa.PSSSaltLengthEqualsHash, Hash: crypto.SHA256}

func sign(key crypto.Signer, algorithm tls.SignatureScheme, message []byte) ([]byte, error) {
	switch algorithm {
	case tls.ECDSAWithP256AndSHA256:
		sum := sha256.Sum256(message)
		return key.Sign(rand.Reader, sum[:], crypto.SHA256)
	case tls.ECDSAWithP384AndSHA384:
		sum := sha512.Sum384(message)
		return key.Sign(rand.Reader, sum[:], crypto.SHA384)
	case tls.PSSWithSHA256:
		sum := sha256.Sum256(message)
		return key.Sign(rand.Reader, sum[:], pss)
	}
	return key.Sign(rand.Reader, message, crypto.Hash(0)) // Ed25519
}

// signed checks a signature. The algorithm must be the one that the key signs with.
func signed(key crypto.PublicKey, algorithm tls.SignatureScheme, message, signature []byte) bool {
	if own, err := algorithmOf(key); err != nil || own != algorithm {
		return false
	}
	switch k := key.(type) {
	case ed25519.PublicKey:
		return ed25519.Verify(k, message, signature)
	case *ecdsa.PublicKey:
		if algorithm == tls.ECDSAWithP384AndSHA384 {
			sum := sha512.Sum384(message)
			return ecdsa.VerifyASN1(k, sum[:], signature)
		}
		sum := sha256.Sum256(message)
		return ecdsa.VerifyASN1(k, sum[:], signature)
	case *rsa.PublicKey:
		sum := sha256.Sum256(message)
		return rsa.VerifyPSS(k, crypto.SHA256, sum[:], signature, pss) == nil
	}
	return false
}
