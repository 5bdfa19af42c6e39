/* Tile kernels for AVX2 with FMA, AVX-512, and AVX-512 with VNNI. */

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif
#define NPU_V __m256i
#define NPU_LOAD(p) _mm256_loadu_si256((const __m256i *)(const void *)(p))
#define NPU_STORE(p, value) _mm256_storeu_si256((__m256i *)(void *)(p), value)
#define NPU_SPLAT(p) _mm256_set1_epi32((int)npu_unit(p))
#define NPU_ZERO() _mm256_setzero_si256()
#define NPU_ADD(a, b) _mm256_add_epi32(a, b)
#define NPU_F32(sum, a, b) \
    _mm256_castps_si256(_mm256_fmadd_ps(_mm256_castsi256_ps(a), _mm256_castsi256_ps(b), _mm256_castsi256_ps(sum)))
#define NPU_I32(sum, a, b) _mm256_add_epi32(sum, _mm256_mullo_epi32(a, b))
#define NPU_I16(sum, a, b) _mm256_add_epi32(sum, _mm256_madd_epi16(a, b))
NPU_TILES(NPU_ROWS_UP_TO_6, npu_avx2_f32, NPU_F32)
NPU_DEFINE_LINE(npu_avx2_f32, NPU_F32)
NPU_TILES(NPU_ROWS_UP_TO_6, npu_avx2_i32, NPU_I32)
NPU_TILES(NPU_ROWS_UP_TO_6, npu_avx2_i16, NPU_I16)
#undef NPU_V
#undef NPU_LOAD
#undef NPU_STORE
#undef NPU_SPLAT
#undef NPU_ZERO
#undef NPU_ADD
#undef NPU_F32
#undef NPU_I32
#undef NPU_I16
#if defined(__clang__)
#pragma clang attribute pop
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma"))), apply_to = function)
#else
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,fma")
#endif
#define NPU_V __m512i
#define NPU_LOAD(p) _mm512_loadu_si512((const void *)(p))
#define NPU_STORE(p, value) _mm512_storeu_si512((void *)(p), value)
#define NPU_SPLAT(p) _mm512_set1_epi32((int)npu_unit(p))
#define NPU_ZERO() _mm512_setzero_si512()
#define NPU_ADD(a, b) _mm512_add_epi32(a, b)
#define NPU_F32(sum, a, b) \
    _mm512_castps_si512(_mm512_fmadd_ps(_mm512_castsi512_ps(a), _mm512_castsi512_ps(b), _mm512_castsi512_ps(sum)))
#define NPU_I32(sum, a, b) _mm512_add_epi32(sum, _mm512_mullo_epi32(a, b))
#define NPU_I16(sum, a, b) _mm512_add_epi32(sum, _mm512_madd_epi16(a, b))
NPU_TILES(NPU_ROWS_UP_TO_14, npu_avx512_f32, NPU_F32)
NPU_DEFINE_LINE(npu_avx512_f32, NPU_F32)
NPU_TILES(NPU_ROWS_UP_TO_14, npu_avx512_i32, NPU_I32)
NPU_TILES(NPU_ROWS_UP_TO_14, npu_avx512_i16, NPU_I16)
#if defined(__clang__)
#pragma clang attribute pop
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma"))), apply_to = function)
#else
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,fma")
#endif
#define NPU_PAIRS(sum, a, b) _mm512_dpwssd_epi32(sum, a, b)
#define NPU_QUADS(sum, a, b) _mm512_dpbusd_epi32(sum, a, b)
NPU_TILES(NPU_ROWS_UP_TO_14, npu_vnni_i16, NPU_PAIRS)
NPU_TILES(NPU_ROWS_UP_TO_14, npu_vnni_u8, NPU_QUADS)
#undef NPU_V
#undef NPU_LOAD
#undef NPU_STORE
#undef NPU_SPLAT
#undef NPU_ZERO
#undef NPU_ADD
#undef NPU_F32
#undef NPU_I32
#undef NPU_I16
#undef NPU_PAIRS
#undef NPU_QUADS
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

static const npu_gemm npu_gemm_avx2 = {
    8, 6, npu_avx2_f32_line,
    {NPU_TABLE(NPU_ROWS_UP_TO_6, npu_avx2_f32), NPU_TABLE(NPU_ROWS_UP_TO_6, npu_avx2_i32),
     NPU_TABLE(NPU_ROWS_UP_TO_6, npu_avx2_i16)}};
static const npu_gemm npu_gemm_avx512 = {
    16, 14, npu_avx512_f32_line,
    {NPU_TABLE(NPU_ROWS_UP_TO_14, npu_avx512_f32), NPU_TABLE(NPU_ROWS_UP_TO_14, npu_avx512_i32),
     NPU_TABLE(NPU_ROWS_UP_TO_14, npu_avx512_i16)}};
static const npu_gemm npu_gemm_vnni = {
    16, 14, npu_avx512_f32_line,
    {NPU_TABLE(NPU_ROWS_UP_TO_14, npu_avx512_f32), NPU_TABLE(NPU_ROWS_UP_TO_14, npu_avx512_i32),
     NPU_TABLE(NPU_ROWS_UP_TO_14, npu_vnni_i16), NPU_TABLE(NPU_ROWS_UP_TO_14, npu_vnni_u8)}};
