package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// Save writes what `etcdctl snapshot save` writes: a snapshot of the first member.
func (m *Members) Save(ctx context.Context, path string) error {
	client, err := m.Connect(m.members[0].clientURL)
	if err != nil {
		return err
	}
	defer client.Close()
	stream, err := client.Snapshot(ctx)
	if err != nil {
		return err
	}
	defer stream.Close()
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, stream)
	return errors.Join(err, file.Close())
}

// Program is a server, and the command that makes a member's data directory from a snapshot.
type Program struct {
	Server  string
	Restore []string
}

// KvServer is the program at a path, with kvctl next to it.
func KvServer(path string) Program {
	return Program{path, []string{filepath.Join(filepath.Dir(path), "kvctl"), "import", "--from"}}
}

// Etcd is the program at a path, with etcdutl next to it.
func Etcd(path string) Program {
	return Program{path, []string{filepath.Join(filepath.Dir(path), "etcdutl"), "snapshot", "restore"}}
}

// MoveTo stops all members, gives each the data of the snapshot in a new directory, and starts the other
// program in its place: with the same name, URLs, certificates and flags.
func (m *Members) MoveTo(ctx context.Context, program Program, snapshot, dir string) error {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	for _, one := range m.members {
		one.end(syscall.SIGTERM)
		data := filepath.Join(dir, one.name)
		restore := append(program.Restore[1:len(program.Restore):len(program.Restore)],
			snapshot, "--data-dir", data, "--name", one.name)
		for i, arg := range one.args {
			switch name, _, _ := strings.Cut(arg, "="); name {
			case "--initial-cluster", "--initial-advertise-peer-urls":
				restore = append(restore, arg)
			case "--data-dir":
				one.args[i] = "--data-dir=" + data
			}
		}
		output, err := exec.CommandContext(ctx, program.Restore[0], restore...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("%s %v: %w\n%s", program.Restore[0], restore, err, output)
		}
		one.binary = program.Server
	}
	return m.startAll(ctx)
}
