package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Import is a run of `kvctl import --live` that copies the running members and follows them.
type Import struct {
	process
	binary string
	dirs   []string
}

// StartImport begins a live import of the members into a directory for each of them, and returns when it has
// copied what was there.
func (m *Members) StartImport(ctx context.Context, binary, dir string) (*Import, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	running := &Import{binary: binary}
	args := []string{
		"import", "--live", strings.Join(m.Endpoints(), ","), "--cacert", m.pki.File("etcd/ca.crt"),
		"--cert", m.pki.File("apiserver-etcd-client.crt"), "--key", m.pki.File("apiserver-etcd-client.key"),
	}
	for i, one := range m.members {
		data := filepath.Join(dir, one.name)
		running.dirs = append(running.dirs, data)
		if i > 0 {
			args = append(args, "--other-data-dir", one.name+"="+data)
			continue
		}
		args = append(args, "--name", one.name, "--data-dir", data)
		for _, arg := range one.args {
			switch name, _, _ := strings.Cut(arg, "="); name {
			case "--initial-cluster", "--initial-advertise-peer-urls":
				args = append(args, arg)
			}
		}
	}
	running.process = process{name: "import", binary: filepath.Join(filepath.Dir(binary), "kvctl"), args: args, log: dir + ".log"}
	if err := running.start(); err != nil {
		return nil, err
	}
	return running, running.says(ctx, "following from revision")
}

// says returns when the import has printed something.
func (i *Import) says(ctx context.Context, wanted string) error {
	for {
		printed, err := os.ReadFile(i.log)
		if err != nil || bytes.Contains(printed, []byte(wanted)) {
			return err
		}
		select {
		case <-i.exited:
			return fmt.Errorf("the import ended without %q:\n%s", wanted, i.logTail())
		case <-ctx.Done():
			return fmt.Errorf("%w: the import did not say %q:\n%s", ctx.Err(), wanted, i.logTail())
		case <-time.After(readyPoll):
		}
	}
}

// Finish ends the import as an operator does, and fails unless it says that it has what the source has.
func (i *Import) Finish(ctx context.Context) (string, error) {
	if err := i.cmd.Process.Signal(os.Interrupt); err != nil {
		return "", err
	}
	select {
	case <-i.exited:
	case <-ctx.Done():
		return "", ctx.Err()
	}
	tail := i.logTail()
	if !i.cmd.ProcessState.Success() || !strings.Contains(tail, "as in the source") {
		return "", errors.New("the import failed:\n" + tail)
	}
	return tail[strings.LastIndexByte(tail, '\n')+1:], nil
}

// End kills an import that was not finished.
func (i *Import) End() { i.end(syscall.SIGKILL) }

// SwitchTo ends all members, and starts the imported ones at their addresses.
func (m *Members) SwitchTo(ctx context.Context, imported *Import) error {
	for at, one := range m.members {
		one.end(syscall.SIGKILL)
		for i, arg := range one.args {
			if name, _, _ := strings.Cut(arg, "="); name == "--data-dir" {
				one.args[i] = "--data-dir=" + imported.dirs[at]
			}
		}
		one.binary = imported.binary
	}
	return m.startAll(ctx)
}
