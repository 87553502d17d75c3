package wire

import (
	"encoding/base64"
	"fmt"
	"strings"
)

// runMin is the shortest run of one byte that is worth its own piece.
const runMin = 256

// Pack writes bytes for a recording: base64, cut at '|' into pieces, where a piece like 120*1600000 stands for that
// many bytes of that value. A request of two megabytes then takes one short line.
func Pack(bytes []byte) string {
	var pieces []string
	plain := 0
	for i := 0; i < len(bytes); {
		end := i + 1
		for end < len(bytes) && bytes[end] == bytes[i] {
			end++
		}
		if end-i >= runMin {
			if plain < i {
				pieces = append(pieces, base64.StdEncoding.EncodeToString(bytes[plain:i]))
			}
			pieces = append(pieces, fmt.Sprintf("%d*%d", bytes[i], end-i))
			plain = end
		}
		i = end
	}
	if plain < len(bytes) {
		pieces = append(pieces, base64.StdEncoding.EncodeToString(bytes[plain:]))
	}
	return strings.Join(pieces, "|")
}
