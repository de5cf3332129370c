/* Random 64-bit numbers as NumPy's SFC64 gives them from a seed (O'Neill's seed_seq, Doty-Humphrey's Small Fast Counting). */

#include <stdint.h>

static uint32_t hashed(uint32_t value, uint32_t *constant, uint32_t factor) {
    value ^= *constant;
    *constant *= factor;
    value *= *constant;
    return value ^ value >> 16;
}

static uint32_t mixed(uint32_t x, uint32_t y) {
    uint32_t result = 0xca01f9ddu * x - 0x4973f715u * y;
    return result ^ result >> 16;
}

static uint64_t next(uint64_t s[4]) {
    uint64_t result = s[0] + s[1] + s[3]++;
    s[0] = s[1] ^ s[1] >> 11;
    s[1] = s[2] + (s[2] << 3);
    s[2] = (s[2] << 24 | s[2] >> 40) + result;
    return result;
}

void draw(uint64_t seed, uint64_t *out, long count) {
    uint32_t pool[4] = {(uint32_t)seed, (uint32_t)(seed >> 32), 0, 0}, constant = 0x43b0d7e5u, words[6];
    for (int i = 0; i < 4; i++) pool[i] = hashed(pool[i], &constant, 0x931e8875u);
    for (int from = 0; from < 4; from++)
        for (int to = 0; to < 4; to++)
            if (from != to) pool[to] = mixed(pool[to], hashed(pool[from], &constant, 0x931e8875u));
    constant = 0x8b51f9ddu;
    for (int i = 0; i < 6; i++) words[i] = hashed(pool[i % 4], &constant, 0x58f38dedu);
    uint64_t s[4] = {0, 0, 0, 1};
    for (int i = 0; i < 3; i++) s[i] = words[2 * i] | (uint64_t)words[2 * i + 1] << 32;
    for (int i = 0; i < 12; i++) next(s);
    for (long i = 0; i < count; i++) out[i] = next(s);
}
