// Preloaded into a process under test: writes down what that process does to files below one directory, in order and with
// the bytes, and makes one of those operations fail, or be the last.
//
//   program ──write, rename, fsync …──▶ this library ──▶ kernel
//                                          └──▶ log, one record per operation
//
// * An operation that changes something is done and written down under one lock: the log's order is an order in which
//   things happened, and what the kernel was told by thread A before thread B asked is in the log before what B did.
// * A sync is two records. What was written down before its beginning is safe once its end is written down; between the
//   two nothing is promised. The end is in the log before the program learns that its sync is done.
// * Nothing else is slowed down or changed: files outside of the directory, sockets, reads.
// * A shared writable mapping of a file below the directory would escape the log: the process is aborted with a line.
//
// Environment: TORTURE_ROOT, the directory, as the kernel names it; TORTURE_LOG, the file that records are appended to;
// TORTURE_KILL_AT=n, SIGKILL instead of the nth operation; TORTURE_FAIL_AT=n with TORTURE_FAIL_ERRNO=e, the nth operation
// fails. The layout of a record is read by src/disk/recording.rs.

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum kind {
    START = 1, OPEN, CREATE, WRITE, TRUNCATE, ALLOCATE, SYNC_BEGIN, SYNC_END, RENAME, UNLINK, MKDIR, RMDIR, FAILED, RANGE_SYNC
};

struct record {
    uint32_t magic;
    uint32_t kind;
    uint64_t file;   // inode
    uint64_t offset; // of a write; the length of a truncation; the mode of an allocation
    uint64_t number; // of a sync, equal at both ends; the error of a failure
    uint32_t bytes;  // of data behind the names
    uint16_t name, other; // lengths of names behind this head
};

#define MAGIC 0x74726f54u

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char root[PATH_MAX];
static size_t root_len;
static int log_fd = -1;
static uint64_t operations, kill_at, fail_at, sync_number;
static int fail_errno;
static __thread int is_late;

static uint64_t number_from(const char *name) {
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : 0;
}

static void give_up(const char *why) {
    char line[256];
    int len = snprintf(line, sizeof line, "torture recorder: %s (errno %d)\n", why, errno);
    syscall(SYS_write, 2, line, (size_t)len);
    abort();
}

static void append(struct record *head, const char *name, const char *other, const struct iovec *data, int count) {
    struct iovec parts[3] = {{head, sizeof *head}, {(void *)name, head->name}, {(void *)other, head->other}};
    head->magic = MAGIC;
    size_t left = head->bytes;
    if (syscall(SYS_writev, log_fd, parts, 3) != (long)(sizeof *head + head->name + head->other)) give_up("append to the log");
    for (int at = 0; at < count && left > 0; at++) {
        size_t bytes = data[at].iov_len < left ? data[at].iov_len : left;
        const char *from = data[at].iov_base;
        left -= bytes;
        while (bytes > 0) {
            long wrote = syscall(SYS_write, log_fd, from, bytes);
            if (wrote <= 0) give_up("append data to the log");
            from += wrote, bytes -= (size_t)wrote;
        }
    }
}

static void note(enum kind kind, uint64_t file, uint64_t offset, uint64_t number, const char *name, const char *other) {
    struct record head = {.kind = kind, .file = file, .offset = offset, .number = number};
    head.name = name ? (uint16_t)strlen(name) : 0;
    head.other = other ? (uint16_t)strlen(other) : 0;
    append(&head, name, other, NULL, 0);
}

__attribute__((constructor)) static void begin(void) {
    const char *dir = getenv("TORTURE_ROOT"), *path = getenv("TORTURE_LOG");
    if (!dir || !path) return;
    root_len = strlen(dir);
    if (root_len == 0 || root_len >= sizeof root) give_up("TORTURE_ROOT");
    memcpy(root, dir, root_len + 1);
    log_fd = (int)syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (log_fd < 0) give_up("open TORTURE_LOG");
    kill_at = number_from("TORTURE_KILL_AT");
    fail_at = number_from("TORTURE_FAIL_AT");
    fail_errno = (int)number_from("TORTURE_FAIL_ERRNO");
    note(START, 0, 0, 0, NULL, NULL);
}

// The name of `path` below the root, or null if it lies elsewhere. The root itself is "".
static const char *below(int dir, const char *path, char *buffer) {
    if (log_fd < 0 || !path) return NULL;
    if (path[0] != '/') {
        char link[64];
        if (dir == AT_FDCWD) {
            if (syscall(SYS_getcwd, buffer, PATH_MAX) < 0) return NULL;
        } else {
            snprintf(link, sizeof link, "/proc/self/fd/%d", dir);
            long len = syscall(SYS_readlinkat, AT_FDCWD, link, buffer, PATH_MAX - 1);
            if (len < 0) return NULL;
            buffer[len] = 0;
        }
        size_t used = strlen(buffer);
        if (used + strlen(path) + 2 > PATH_MAX) return NULL;
        if (strcmp(path, ".") != 0) { buffer[used] = '/'; strcpy(buffer + used + 1, path); }
        path = buffer;
    }
    if (strncmp(path, root, root_len) != 0) return NULL;
    if (path[root_len] == 0) return path + root_len;
    return path[root_len] == '/' ? path + root_len + 1 : NULL;
}

// Files that were opened below the root. Numbers of files are used again only when nobody has the old one open, and then
// the new one is noted as created.
#define KNOWN_MAX 65536
static struct { uint64_t dev, ino; } known[KNOWN_MAX];
static size_t known_len;

static int is_known(uint64_t dev, uint64_t ino) {
    for (size_t at = known_len; at > 0; at--)
        if (known[at - 1].ino == ino && known[at - 1].dev == dev) return 1;
    return 0;
}

static uint64_t learn(int fd) {
    struct stat facts;
    if (fstat(fd, &facts) != 0) give_up("fstat");
    if (!is_known(facts.st_dev, facts.st_ino)) {
        if (known_len == KNOWN_MAX) give_up("too many files");
        known[known_len].dev = facts.st_dev;
        known[known_len++].ino = facts.st_ino;
    }
    return facts.st_ino;
}

// The number of a file below the root, or 0. The cheap question comes first: sockets and pipes are no files.
static uint64_t file_of(int fd) {
    struct stat facts;
    if (log_fd < 0 || fd == log_fd || fstat(fd, &facts) != 0) return 0;
    if (!S_ISREG(facts.st_mode) && !S_ISDIR(facts.st_mode)) return 0;
    return is_known(facts.st_dev, facts.st_ino) ? facts.st_ino : 0;
}

// Counts an operation, with the lock held. True: it must fail, and errno says how.
static int refused(enum kind kind, uint64_t file, const char *name) {
    operations++;
    if (operations == kill_at) {
        syscall(SYS_kill, syscall(SYS_getpid), SIGKILL);
        for (;;) syscall(SYS_pause);
    }
    if (operations != fail_at) return 0;
    char line[PATH_MAX + 100];
    int len = snprintf(line, sizeof line, "torture recorder: operation %llu, kind %d, of \"%s\" fails with errno %d\n",
                       (unsigned long long)operations, (int)kind, name ? name : "", fail_errno);
    syscall(SYS_write, 2, line, (size_t)len);
    note(FAILED, file, (uint64_t)kind, (uint64_t)fail_errno, name, NULL);
    errno = fail_errno;
    is_late = 1;
    return 1;
}

// Lets go of the lock and leaves errno as `error`. A failure is answered late, as disks do that try again before they give up:
// what other threads did meanwhile has succeeded, and they may be waiting for this one.
static void leave(int error) {
    pthread_mutex_unlock(&lock);
    if (is_late) {
        is_late = 0;
        struct timespec pause = {.tv_nsec = 20 * 1000 * 1000};
        nanosleep(&pause, NULL);
    }
    errno = error;
}

// ------------------------------------------------------------------------------------------------------------ opening

static int open_noted(int dir, const char *path, int flags, mode_t mode) {
    char buffer[PATH_MAX];
    const char *name = below(dir, path, buffer);
    if (!name) return (int)syscall(SYS_openat, dir, path, flags, mode);
    pthread_mutex_lock(&lock);
    struct stat facts;
    int existed = fstatat(dir, path, &facts, 0) == 0, creates = (flags & O_CREAT) && !existed;
    int truncates = existed && (flags & O_TRUNC) && S_ISREG(facts.st_mode) && facts.st_size > 0, fd = -1;
    if ((creates || truncates) && refused(creates ? CREATE : TRUNCATE, 0, name)) goto out;
    fd = (int)syscall(SYS_openat, dir, path, flags, mode);
    if (fd < 0) goto out;
    uint64_t file = learn(fd);
    note(creates ? CREATE : OPEN, file, 0, 0, name, NULL);
    if (truncates) note(TRUNCATE, file, 0, 0, NULL, NULL);
out:;
    leave(errno);
    return fd;
}

static mode_t mode_of(int flags, va_list rest) { return (flags & (O_CREAT | O_TMPFILE)) ? va_arg(rest, mode_t) : 0; }

#define OPEN_AS(name) \
    int name(const char *path, int flags, ...) { \
        va_list rest; va_start(rest, flags); mode_t mode = mode_of(flags, rest); va_end(rest); \
        return open_noted(AT_FDCWD, path, flags, mode); }
#define OPENAT_AS(name) \
    int name(int dir, const char *path, int flags, ...) { \
        va_list rest; va_start(rest, flags); mode_t mode = mode_of(flags, rest); va_end(rest); \
        return open_noted(dir, path, flags, mode); }
OPEN_AS(open)
OPEN_AS(open64)
OPENAT_AS(openat)
OPENAT_AS(openat64)
int creat(const char *path, mode_t mode) { return open_noted(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }

// ------------------------------------------------------------------------------------------------------------ writing

// A write at `offset`, or where the descriptor stands if that is negative.
static ssize_t write_noted(int fd, uint64_t file, const struct iovec *data, int count, off_t offset) {
    pthread_mutex_lock(&lock);
    ssize_t wrote = -1;
    if (!refused(WRITE, file, NULL)) {
        struct record head = {.kind = WRITE, .file = file, .offset = (uint64_t)offset};
        if (offset < 0) {
            struct stat facts;
            int appends = fcntl(fd, F_GETFL) & O_APPEND;
            if (appends && fstat(fd, &facts) != 0) give_up("fstat before an append");
            head.offset = appends ? (uint64_t)facts.st_size : (uint64_t)lseek(fd, 0, SEEK_CUR);
            wrote = syscall(SYS_writev, fd, data, count);
        } else {
            wrote = syscall(SYS_pwritev, fd, data, count, (long)offset, 0L);
        }
        int error = errno;
        if (wrote > 0) {
            head.bytes = (uint32_t)wrote;
            append(&head, NULL, NULL, data, count);
        }
        errno = error;
    }
    leave(errno);
    return wrote;
}

ssize_t write(int fd, const void *data, size_t bytes) {
    uint64_t file = file_of(fd);
    struct iovec one = {(void *)data, bytes};
    return file ? write_noted(fd, file, &one, 1, -1) : syscall(SYS_write, fd, data, bytes);
}

ssize_t writev(int fd, const struct iovec *data, int count) {
    uint64_t file = file_of(fd);
    return file ? write_noted(fd, file, data, count, -1) : syscall(SYS_writev, fd, data, count);
}

#define PWRITE_AS(name, type) \
    ssize_t name(int fd, const void *data, size_t bytes, type offset) { \
        uint64_t file = file_of(fd); \
        struct iovec one = {(void *)data, bytes}; \
        return file ? write_noted(fd, file, &one, 1, offset) : syscall(SYS_pwrite64, fd, data, bytes, offset); }
#define PWRITEV_AS(name, type) \
    ssize_t name(int fd, const struct iovec *data, int count, type offset) { \
        uint64_t file = file_of(fd); \
        return file ? write_noted(fd, file, data, count, offset) : syscall(SYS_pwritev, fd, data, count, (long)offset, 0L); }
PWRITE_AS(pwrite, off_t)
PWRITE_AS(pwrite64, off64_t)
PWRITEV_AS(pwritev, off_t)
PWRITEV_AS(pwritev64, off64_t)

static int truncate_noted(int fd, off_t length) {
    uint64_t file = file_of(fd);
    if (!file) return (int)syscall(SYS_ftruncate, fd, length);
    pthread_mutex_lock(&lock);
    int result = refused(TRUNCATE, file, NULL) ? -1 : (int)syscall(SYS_ftruncate, fd, length);
    int error = errno;
    if (result == 0) note(TRUNCATE, file, (uint64_t)length, 0, NULL, NULL);
    leave(error);
    return result;
}
int ftruncate(int fd, off_t length) { return truncate_noted(fd, length); }
int ftruncate64(int fd, off64_t length) { return truncate_noted(fd, length); }

static int allocate_noted(int fd, int mode, off_t offset, off_t bytes) {
    uint64_t file = file_of(fd);
    if (!file) return (int)syscall(SYS_fallocate, fd, mode, offset, bytes);
    pthread_mutex_lock(&lock);
    int result = refused(ALLOCATE, file, NULL) ? -1 : (int)syscall(SYS_fallocate, fd, mode, offset, bytes);
    int error = errno;
    if (result == 0) {
        // The mode in the low bits of the number, the bytes above it; only growth matters to a reader of the file.
        note(ALLOCATE, file, (uint64_t)offset, ((uint64_t)bytes << 8) | (uint64_t)(mode & 0xff), NULL, NULL);
    }
    leave(error);
    return result;
}
int fallocate(int fd, int mode, off_t offset, off_t bytes) { return allocate_noted(fd, mode, offset, bytes); }
int fallocate64(int fd, int mode, off64_t offset, off64_t bytes) { return allocate_noted(fd, mode, offset, bytes); }
static int allocate_posix(int fd, off_t offset, off_t bytes) {
    int before = errno, result = allocate_noted(fd, 0, offset, bytes), error = errno;
    errno = before;
    return result == 0 ? 0 : error;
}
int posix_fallocate(int fd, off_t offset, off_t bytes) { return allocate_posix(fd, offset, bytes); }
int posix_fallocate64(int fd, off64_t offset, off64_t bytes) { return allocate_posix(fd, offset, bytes); }

// ------------------------------------------------------------------------------------------------------------ syncing

static int sync_noted(int fd, long call) {
    uint64_t file = file_of(fd);
    if (!file) return (int)syscall(call, fd);
    pthread_mutex_lock(&lock);
    int fails = refused(SYNC_BEGIN, file, NULL), error = errno;
    uint64_t number = ++sync_number;
    if (!fails) note(SYNC_BEGIN, file, 0, number, NULL, NULL);
    leave(error);
    if (fails) return -1;
    int result = (int)syscall(call, fd);
    error = errno;
    pthread_mutex_lock(&lock);
    if (result == 0) note(SYNC_END, file, 0, number, NULL, NULL);
    leave(error);
    return result;
}
int fsync(int fd) { return sync_noted(fd, SYS_fsync); }
int fdatasync(int fd) { return sync_noted(fd, SYS_fdatasync); }

// Promises nothing: it neither flushes the disk's cache nor writes what is needed to find the bytes again.
int sync_file_range(int fd, off64_t offset, off64_t bytes, unsigned flags) {
    uint64_t file = file_of(fd);
    if (file) {
        pthread_mutex_lock(&lock);
        int fails = refused(RANGE_SYNC, file, NULL), error = errno;
        pthread_mutex_unlock(&lock);
        errno = error;
        if (fails) return -1;
    }
    return (int)syscall(SYS_sync_file_range, fd, offset, bytes, flags);
}

// -------------------------------------------------------------------------------------------------------------- names

static int rename_noted(int from_dir, const char *from, int to_dir, const char *to, unsigned flags) {
    char buffer[PATH_MAX], other_buffer[PATH_MAX];
    const char *name = below(from_dir, from, buffer), *other = below(to_dir, to, other_buffer);
    if (!name != !other) give_up("a rename across the root");
    if (!name) return (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, flags);
    if (flags != 0) give_up("a rename with flags");
    pthread_mutex_lock(&lock);
    int result = refused(RENAME, 0, name) ? -1 : (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, flags);
    int error = errno;
    if (result == 0) note(RENAME, 0, 0, 0, name, other);
    leave(error);
    return result;
}
int rename(const char *from, const char *to) { return rename_noted(AT_FDCWD, from, AT_FDCWD, to, 0); }
int renameat(int from_dir, const char *from, int to_dir, const char *to) { return rename_noted(from_dir, from, to_dir, to, 0); }
int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags) {
    return rename_noted(from_dir, from, to_dir, to, flags);
}

static int remove_noted(int dir, const char *path, int flags) {
    char buffer[PATH_MAX];
    const char *name = below(dir, path, buffer);
    if (!name) return (int)syscall(SYS_unlinkat, dir, path, flags);
    enum kind kind = (flags & AT_REMOVEDIR) ? RMDIR : UNLINK;
    pthread_mutex_lock(&lock);
    int result = refused(kind, 0, name) ? -1 : (int)syscall(SYS_unlinkat, dir, path, flags);
    int error = errno;
    if (result == 0) note(kind, 0, 0, 0, name, NULL);
    leave(error);
    return result;
}
int unlink(const char *path) { return remove_noted(AT_FDCWD, path, 0); }
int unlinkat(int dir, const char *path, int flags) { return remove_noted(dir, path, flags); }
int rmdir(const char *path) { return remove_noted(AT_FDCWD, path, AT_REMOVEDIR); }

static int mkdir_noted(int dir, const char *path, mode_t mode) {
    char buffer[PATH_MAX];
    const char *name = below(dir, path, buffer);
    if (!name) return (int)syscall(SYS_mkdirat, dir, path, mode);
    pthread_mutex_lock(&lock);
    int result = refused(MKDIR, 0, name) ? -1 : (int)syscall(SYS_mkdirat, dir, path, mode);
    int error = errno;
    if (result == 0) {
        struct stat facts;
        if (fstatat(dir, path, &facts, 0) != 0) give_up("stat of a new directory");
        note(MKDIR, facts.st_ino, 0, 0, name, NULL);
    }
    leave(error);
    return result;
}
int mkdir(const char *path, mode_t mode) { return mkdir_noted(AT_FDCWD, path, mode); }
int mkdirat(int dir, const char *path, mode_t mode) { return mkdir_noted(dir, path, mode); }

// ------------------------------------------------------------------------------------------------- what must not happen

static void *map_checked(void *at, size_t bytes, int protection, int flags, int fd, off_t offset) {
    if (fd >= 0 && (flags & MAP_SHARED) && (protection & PROT_WRITE) && file_of(fd)) give_up("a shared writable mapping");
    return (void *)syscall(SYS_mmap, at, bytes, protection, flags, fd, offset);
}
void *mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset) {
    return map_checked(at, bytes, protection, flags, fd, offset);
}
void *mmap64(void *at, size_t bytes, int protection, int flags, int fd, off64_t offset) {
    return map_checked(at, bytes, protection, flags, fd, offset);
}

ssize_t copy_file_range(int in, off64_t *in_at, int out, off64_t *out_at, size_t bytes, unsigned flags) {
    if (file_of(out)) { errno = ENOSYS; return -1; } // the caller falls back on reading and writing
    return syscall(SYS_copy_file_range, in, in_at, out, out_at, bytes, flags);
}

ssize_t sendfile(int out, int in, off_t *offset, size_t bytes) {
    if (file_of(out)) { errno = EINVAL; return -1; }
    return syscall(SYS_sendfile, out, in, offset, bytes);
}
