package wire

import (
	"bytes"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// Masked is what stands for an encoded value that is masked: 1 for a number, a star for bytes.
func Masked(value []byte, kind protowire.Type) []byte {
	if kind == protowire.BytesType {
		return protowire.AppendString(nil, "*")
	}
	return []byte{1}
}

// Replace calls replace with each encoded value on the path, and returns the message with what it gives back.
// A message that cannot be walked is returned as it is.
func Replace(message []byte, path string, replace func(value []byte, kind protowire.Type) []byte) []byte {
	number, deeper, leads := strings.Cut(path, ".")
	var out []byte
	for rest := message; len(rest) > 0; {
		found, kind, tagBytes := protowire.ConsumeTag(rest)
		if tagBytes < 0 {
			return message
		}
		valueBytes := protowire.ConsumeFieldValue(found, kind, rest[tagBytes:])
		if valueBytes < 0 {
			return message
		}
		value := rest[tagBytes : tagBytes+valueBytes]
		out = append(out, rest[:tagBytes]...)
		switch {
		case strconv.Itoa(int(found)) != number:
			out = append(out, value...)
		case !leads:
			out = append(out, replace(value, kind)...)
		case kind == protowire.BytesType:
			inner, _ := protowire.ConsumeBytes(value)
			out = protowire.AppendBytes(out, Replace(inner, deeper, replace))
		default:
			out = append(out, value...)
		}
		rest = rest[tagBytes+valueBytes:]
	}
	return out
}

// First returns the first encoded value on the path, or nil.
func First(message []byte, path string) []byte {
	var first []byte
	Replace(message, path, func(value []byte, _ protowire.Type) []byte {
		if first == nil {
			first = value
		}
		return value
	})
	return first
}

// maskCounted gives a number that has counted down the value that it started from.
func maskCounted(message []byte, field Field) []byte {
	start := First(message, field.CountsDownFrom)
	from, _ := protowire.ConsumeVarint(start)
	return Replace(message, field.Path, func(value []byte, kind protowire.Type) []byte {
		number, _ := protowire.ConsumeVarint(value)
		if kind == protowire.VarintType && number <= from && from-number <= countedMax {
			return start
		}
		return value
	})
}

// sorted puts the values on the path into the order of their bytes.
func sorted(message []byte, path string) []byte {
	var values [][]byte
	Replace(message, path, func(value []byte, _ protowire.Type) []byte {
		values = append(values, value)
		return value
	})
	slices.SortFunc(values, bytes.Compare)
	return Replace(message, path, func([]byte, protowire.Type) []byte {
		value := values[0]
		values = values[1:]
		return value
	})
}
