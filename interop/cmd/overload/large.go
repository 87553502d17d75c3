package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
)

// others runs the clients of large ranges in another process, and gives what it prints.
func others(url string, load load, counts io.Writer) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	// These clients stand for thousands of machines: on this one they give way to the server and the small calls.
	command := exec.Command("nice", "-n", "19", program, "-load-on", url[len("http://"):], "-clients", strconv.Itoa(load.clients),
		"-connections", strconv.Itoa(load.connections), "-bytes", strconv.Itoa(load.bytes),
		"-ramp", strconv.Itoa(load.ramp), "-seconds", strconv.Itoa(load.seconds))
	command.Stdout, command.Stderr = counts, os.Stderr
	return command.Run()
}

// counted are answers to large ranges.
type counted struct {
	whole, refused, hinted, unavailable, late, other atomic.Int64
	last                                             atomic.Value
}

func (c *counted) String() string {
	text := fmt.Sprintf("%d whole, %d refused (%d with a delay), %d unavailable, %d late", c.whole.Load(), c.refused.Load(),
		c.hinted.Load(), c.unavailable.Load(), c.late.Load())
	if other := c.other.Load(); other > 0 {
		text += fmt.Sprintf(", %d other (%v)", other, c.last.Load())
	}
	return text
}

// askFor asks for the large range again and again with all clients.
func askFor(address string, load load) *counted {
	request, err := proto.Marshal(&etcdserverpb.RangeRequest{Key: []byte(key), RangeEnd: []byte("large0"), Serializable: true})
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(load.ramp+load.seconds)*time.Second)
	defer cancel()
	counts := &counted{}
	var all sync.WaitGroup
	for number := range load.connections {
		conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30), grpc.ForceCodecV2(raw{})))
		if err != nil {
			counts.other.Add(1)
			counts.last.Store(err.Error())
			continue
		}
		defer conn.Close()
		for client := number; client < load.clients; client += load.connections {
			comes := time.Duration(load.ramp) * time.Second * time.Duration(client) / time.Duration(load.clients)
			all.Go(func() {
				select {
				case <-ctx.Done():
				case <-time.After(comes):
					counts.ask(ctx, conn, request, load.bytes)
				}
			})
		}
	}
	all.Wait()
	return counts
}

func (c *counted) ask(ctx context.Context, conn *grpc.ClientConn, request []byte, bytes int) {
	for ctx.Err() == nil {
		call, cancel := context.WithTimeout(ctx, callTimeout)
		var trailer metadata.MD
		var size answer
		err := conn.Invoke(call, etcdserverpb.KV_Range_FullMethodName, request, &size, grpc.Trailer(&trailer))
		cancel()
		delay := time.Second
		switch {
		case err == nil && int(size) >= bytes:
			c.whole.Add(1)
			continue
		case ctx.Err() != nil:
			return
		case status.Code(err) == codes.ResourceExhausted:
			c.refused.Add(1)
			if hint := trailer.Get("grpc-retry-pushback-ms"); len(hint) > 0 {
				c.hinted.Add(1)
				if ms, err := strconv.Atoi(hint[0]); err == nil {
					delay = time.Duration(ms) * time.Millisecond
				}
			}
		case status.Code(err) == codes.Unavailable:
			c.unavailable.Add(1)
		case status.Code(err) == codes.DeadlineExceeded:
			c.late.Add(1)
		default:
			c.other.Add(1)
			c.last.Store(fmt.Sprint(err, " ", int(size)))
		}
		select {
		case <-ctx.Done():
		case <-time.After(delay):
		}
	}
}

// answer is the size of one.
type answer int

// raw passes requests as they are and keeps of answers their size.
type raw struct{}

var _ encoding.CodecV2 = raw{}

func (raw) Name() string { return "proto" }

func (raw) Marshal(request any) (mem.BufferSlice, error) {
	bytes, ok := request.([]byte)
	if !ok {
		return nil, errors.New("requests are bytes")
	}
	return mem.BufferSlice{mem.SliceBuffer(bytes)}, nil
}

func (raw) Unmarshal(data mem.BufferSlice, to any) error {
	size, ok := to.(*answer)
	if !ok {
		return errors.New("answers are sizes")
	}
	*size = answer(data.Len())
	return nil
}
