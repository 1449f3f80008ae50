// Compiled to a seed for the target `dwarf`: its debug information contains the names that the target looks up.
#include <atomic>

struct counter_t {
    struct slot {
        std::atomic<unsigned long> value;
    } slots[8];
};

struct node {
    node *next;
    union {
        long value;
        short part : 9;
    };
    counter_t slots;
};

namespace outer {
inline __attribute__((always_inline)) long deep(const node &one) { return one.value * 3; }
inline __attribute__((always_inline)) long deeper(const node &one) { return deep(one) + deep(*one.next); }
}  // namespace outer

node *global;

int main() { return static_cast<int>(outer::deeper(*global)); }
