package wire

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// shownMax is how many bytes of one string a person gets to see; the exact bytes stand beside it anyway.
const shownMax = 80

// Show writes a message as JSON for a person: fields in the order of their numbers, names as in the .proto file, bytes
// as text in which every byte is one code point. It is not meant to be read back.
func Show(message proto.Message, body []byte) json.RawMessage {
	if message == nil || proto.Unmarshal(body, message) != nil {
		return quote(body)
	}
	var out bytes.Buffer
	showMessage(&out, message.ProtoReflect())
	return out.Bytes()
}

func showMessage(out *bytes.Buffer, message protoreflect.Message) {
	out.WriteByte('{')
	fields := message.Descriptor().Fields()
	first := true
	for i := 0; i < fields.Len(); i++ {
		field := fields.Get(i)
		if !message.Has(field) {
			continue
		}
		if !first {
			out.WriteByte(',')
		}
		first = false
		fmt.Fprintf(out, "%q:", field.Name())
		if field.IsList() {
			showList(out, field, message.Get(field).List())
		} else {
			showValue(out, field, message.Get(field))
		}
	}
	out.WriteByte('}')
}

func showList(out *bytes.Buffer, field protoreflect.FieldDescriptor, list protoreflect.List) {
	out.WriteByte('[')
	for i := 0; i < list.Len(); i++ {
		if i > 0 {
			out.WriteByte(',')
		}
		showValue(out, field, list.Get(i))
	}
	out.WriteByte(']')
}

func showValue(out *bytes.Buffer, field protoreflect.FieldDescriptor, value protoreflect.Value) {
	switch field.Kind() {
	case protoreflect.MessageKind:
		showMessage(out, value.Message())
	case protoreflect.BytesKind:
		out.Write(quote(value.Bytes()))
	case protoreflect.StringKind:
		out.Write(quote([]byte(value.String())))
	case protoreflect.EnumKind:
		if known := field.Enum().Values().ByNumber(value.Enum()); known != nil {
			fmt.Fprintf(out, "%q", known.Name())
		} else {
			fmt.Fprintf(out, "%d", value.Enum())
		}
	default:
		fmt.Fprint(out, value.Interface())
	}
}

func quote(raw []byte) json.RawMessage {
	var text strings.Builder
	for i, b := range raw {
		if i == shownMax {
			fmt.Fprintf(&text, "… (%d bytes)", len(raw))
			break
		}
		text.WriteRune(rune(b))
	}
	quoted, err := json.Marshal(text.String())
	if err != nil {
		panic(err) // a string always has a JSON form
	}
	return quoted
}
