/* Codes and rows, with vectors of VEC bytes: pack_rows.c includes it for each size. Code q of a column has the bits from q * bits on of the
 * column's bytes. All loops over codes and bytes are unrolled, for each number of bits. */

typedef uint8_t NAME(vec) __attribute__((vector_size(VEC)));

EACH NAME(column_out)(uint8_t *restrict to, const uint8_t *restrict top, uint32_t row, uint8_t base, const int bits)
{
    const uint8_t most = (uint8_t)((1 << bits) - 1);
    NAME(vec) code[ROWS];
#pragma GCC unroll 8
    for (int q = 0; q < ROWS; q++) {
        memcpy(&code[q], top + (size_t)q * row, VEC); /* ours */
        code[q] -= base;
        NAME(vec) fits = (NAME(vec))(code[q] < most);
        code[q] = (code[q] & fits) | (most & ~fits);
    }
#pragma GCC unroll 8
    for (int i = 0; i < bits; i++) {
        NAME(vec) out = {0};
#pragma GCC unroll 8
        for (int q = 0; q < ROWS; q++) {
            int at = q * bits - 8 * i; /* where the code begins in this byte */
            if (at > -bits && at < 8)
                out |= at >= 0 ? code[q] << (at & 7) : code[q] >> (-at & 7);
        }
        memcpy(to + (size_t)i * row, &out, VEC); /* ours */
    }
}

EACH NAME(column_in)(uint8_t *restrict top, const uint8_t *restrict from, uint32_t row, uint8_t base, const int bits)
{
    const uint8_t most = (uint8_t)((1 << bits) - 1);
    NAME(vec) in[ROWS];
#pragma GCC unroll 8
    for (int i = 0; i < bits; i++)
        memcpy(&in[i], from + (size_t)i * row, VEC); /* ours */
#pragma GCC unroll 8
    for (int q = 0; q < ROWS; q++) {
        int i = q * bits / 8, at = q * bits % 8;
        NAME(vec) code = in[i] >> at;
        if (at + bits > 8)
            code |= in[i + 1] << (8 - at);
        code = (code & most) + base;
        memcpy(top + (size_t)q * row, &code, VEC); /* ours */
    }
}

/* The last column begins where a whole one fits: what it does twice gives the same bytes. */
EACH NAME(rows_of)(uint8_t *restrict to, const uint8_t *restrict top, uint32_t row, uint8_t base, const int bits)
{
    for (uint32_t j = 0; j + VEC < row; j += VEC)
        NAME(column_out)(to + j, top + j, row, base, bits);
    NAME(column_out)(to + row - VEC, top + row - VEC, row, base, bits);
}

EACH NAME(tops_of)(uint8_t *restrict top, const uint8_t *restrict from, uint32_t row, uint8_t base, const int bits)
{
    for (uint32_t j = 0; j + VEC < row; j += VEC)
        NAME(column_in)(top + j, from + j, row, base, bits);
    NAME(column_in)(top + row - VEC, from + row - VEC, row, base, bits);
}

EACH NAME(rows)(uint8_t *restrict to, const uint8_t *restrict top, uint32_t row, uint8_t base, int bits)
{
    switch (bits) {
    case 1: NAME(rows_of)(to, top, row, base, 1); break;
    case 2: NAME(rows_of)(to, top, row, base, 2); break;
    case 3: NAME(rows_of)(to, top, row, base, 3); break;
    case 4: NAME(rows_of)(to, top, row, base, 4); break;
    case 5: NAME(rows_of)(to, top, row, base, 5); break;
    case 6: NAME(rows_of)(to, top, row, base, 6); break;
    case 7: NAME(rows_of)(to, top, row, base, 7); break;
    }
}

EACH NAME(tops)(uint8_t *restrict top, const uint8_t *restrict from, uint32_t row, uint8_t base, int bits)
{
    switch (bits) {
    case 1: NAME(tops_of)(top, from, row, base, 1); break;
    case 2: NAME(tops_of)(top, from, row, base, 2); break;
    case 3: NAME(tops_of)(top, from, row, base, 3); break;
    case 4: NAME(tops_of)(top, from, row, base, 4); break;
    case 5: NAME(tops_of)(top, from, row, base, 5); break;
    case 6: NAME(tops_of)(top, from, row, base, 6); break;
    case 7: NAME(tops_of)(top, from, row, base, 7); break;
    }
}
