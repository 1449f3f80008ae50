// A server that attacks terminals: it puts escape sequences into the names of its threads and functions, its
// version, its rows and its errors. Arguments: --socket=PATH, and --mode=rows or --mode=errors.
//
// hostile.py replaces the names of the functions below in the compiled symbol table.
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <pthread.h>
#include <string>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>
#include <vector>

#ifdef BENIGN
#define PAYLOAD "harmless"
#else
#define PAYLOAD "\x1b]0;PWNED\x07\x1b[38;5;201m\xc2\x9b\x32J\xe2\x80\xae\xe2\x81\xa6\r\b[red]"
#endif

extern "C" char server_version[60];
char server_version[60] = "8.0.36-log";
static const char *volatile from_binary = "/mysql-8.0.36-debug/";
static volatile long tids[2];
static bool errors_only;

static void sleep_for_good()
{
    for (;;)
        pause();
}

extern "C" __attribute__((noinline)) void evil_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA()
{
    sleep_for_good();
    __asm__ volatile("");
}

__attribute__((noinline)) void evil_BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB(int)
{
    sleep_for_good();
    __asm__ volatile("");
}

// A function that the probe catalog lists, so that a probe can be attached to it.
extern "C" __attribute__((noinline)) void do_command()
{
    evil_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA();
    __asm__ volatile("");
}

static void *thread(void *which)
{
    auto index = reinterpret_cast<intptr_t>(which);
    prctl(PR_SET_NAME, PAYLOAD);
    tids[index] = syscall(SYS_gettid);
    index ? evil_BBBBBBBBBBBBBBBBBBBBBBBBBBBBBBBB(1) : do_command();
    return nullptr;
}

struct Connection {
    int fd;
    uint8_t sequence;

    bool read_all(void *into, size_t size)
    {
        auto *at = static_cast<char *>(into);
        while (size) {
            ssize_t got = read(fd, at, size);
            if (got <= 0)
                return false;
            at += got;
            size -= static_cast<size_t>(got);
        }
        return true;
    }

    bool receive(std::string &body)
    {
        uint8_t head[4];
        if (!read_all(head, sizeof head))
            return false;
        sequence = static_cast<uint8_t>(head[3] + 1);
        body.resize(head[0] | head[1] << 8 | head[2] << 16);
        return read_all(body.data(), body.size());
    }

    void send(const std::string &body)
    {
        std::string packet{static_cast<char>(body.size()), static_cast<char>(body.size() >> 8),
            static_cast<char>(body.size() >> 16), static_cast<char>(sequence++)};
        packet += body;
        ::send(fd, packet.data(), packet.size(), MSG_NOSIGNAL); // the client may have disconnected
    }
};

static std::string bytes(std::initializer_list<int> of)
{
    return {of.begin(), of.end()};
}

static std::string counted(const std::string &text)
{
    return (text.size() < 251 ? std::string(1, static_cast<char>(text.size()))
                              : bytes({252, static_cast<int>(text.size() & 255), static_cast<int>(text.size() >> 8)}))
        + text;
}

// Return the columns that a SELECT statement lists.
static std::vector<std::string> columns(const std::string &statement)
{
    std::vector<std::string> found(1);
    int depth = 0;
    for (size_t at = statement.find(' '); at < statement.size(); ++at) {
        char letter = statement[at];
        depth += (letter == '(') - (letter == ')');
        if (!depth && (statement.compare(at, 6, " FROM ") == 0 || statement.compare(at, 5, "\nFROM") == 0))
            break;
        if (letter == ',' && !depth)
            found.emplace_back();
        else
            found.back() += letter;
    }
    size_t wanted = found.size();
    if (statement.find("ENGINE INNODB STATUS") != std::string::npos)
        wanted = 3;
    else if (statement.find("SHOW") == 0)
        wanted = statement.find("PROCESSLIST") != std::string::npos ? 8 : 2;
    found.resize(wanted);
    return found;
}

static std::string value(const std::string &expression, size_t row)
{
    if (expression.find("THREAD_OS_ID") != std::string::npos)
        return std::to_string(tids[row % 2]);
    for (const char *number : {"_ID", "TIME", "COUNT", "count", "SUM", "sum", "time", "pid", "_id", "MAX", "SECONDS"})
        if (expression.find(number) != std::string::npos)
            return std::to_string(row + 1);
    return "n" + std::to_string(row) + PAYLOAD;
}

static void answer(Connection &to, const std::string &statement)
{
    const std::string ok = bytes({0, 0, 0, 2, 0, 0, 0}), end = bytes({254, 0, 0, 2, 0});
    const bool asks = statement.find("SELECT") == 0 || statement.find("SHOW") == 0;
    if (errors_only)
        return to.send(bytes({255, 0x28, 0x04}) + "#42000no such thing: " PAYLOAD "\n second line");
    if (!asks)
        return to.send(ok);
    auto wanted = columns(statement);
    to.send(std::string(1, static_cast<char>(wanted.size())));
    for (size_t number = 0; number < wanted.size(); ++number) {
        std::string name = "c" + std::to_string(number) + PAYLOAD;
        to.send(counted("def") + counted(PAYLOAD) + counted(PAYLOAD) + counted(PAYLOAD) + counted(name)
            + counted(name) + bytes({12, 45, 0, 0, 4, 0, 0, 253, 0, 0, 0, 0, 0}));
    }
    to.send(end);
    for (size_t row = 0; row < 2; ++row) {
        std::string cells;
        for (const auto &expression : wanted)
            cells += counted(value(expression, row));
        to.send(cells);
    }
    to.send(end);
}

static void *serve(void *fd)
{
    Connection to{static_cast<int>(reinterpret_cast<intptr_t>(fd)), 0};
    std::string body;
    to.send(bytes({10}) + "8.0.36-" PAYLOAD + bytes({0, 7, 0, 0, 0, 'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', 0}) + bytes({0x0f, 0xa2, 45, 2, 0, 0x08, 0x00, 21})
        + std::string(10, '\0') + "abcdefghijkl" + bytes({0}) + "mysql_native_password" + bytes({0}));
    if (to.receive(body)) {
        to.send(bytes({0, 0, 0, 2, 0, 0, 0}));
        while (to.receive(body) && !body.empty() && body[0] != 1) {
            if (body[0] == 3)
                answer(to, body.substr(1));
            else
                to.send(bytes({0, 0, 0, 2, 0, 0, 0}));
        }
    }
    close(to.fd);
    return nullptr;
}

int main(int count, char **arguments)
{
    sockaddr_un place{};
    place.sun_family = AF_UNIX;
    for (int index = 1; index < count; ++index) {
        if (!strncmp(arguments[index], "--socket=", 9))
            strncpy(place.sun_path, arguments[index] + 9, sizeof place.sun_path - 1);
        errors_only |= !strcmp(arguments[index], "--mode=errors");
    }
    (void)from_binary;
    int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    if (bind(listener, reinterpret_cast<sockaddr *>(&place), sizeof place) || listen(listener, 16))
        return perror("listen"), 1;
    pthread_t started;
    for (intptr_t index = 0; index < 2; ++index)
        pthread_create(&started, nullptr, thread, reinterpret_cast<void *>(index));
    while (!tids[0] || !tids[1])
        usleep(1000);
    prctl(PR_SET_NAME, "\xff\x9b" PAYLOAD);
    puts("ready");
    fflush(stdout);
    for (;;) {
        int fd = accept(listener, nullptr, nullptr);
        if (fd >= 0 && pthread_create(&started, nullptr, serve, reinterpret_cast<void *>(static_cast<intptr_t>(fd))))
            close(fd);
    }
}
