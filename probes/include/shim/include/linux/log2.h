#pragma once
#define roundup_pow_of_two(n) (1ULL << (64 - __builtin_clzll((unsigned long long)(n)-1)))
