/* What NVTE_QKV_Layout says: format of Q, format of K and V, how they are packed. */
#include "te/fused_attn.h"

namespace chagres::reference {

namespace {

struct LayoutRow {
  NVTE_QKV_Layout_Group group;
  NVTE_QKV_Format format, q, kv;
};

/* By number of the layout. */
constexpr LayoutRow kLayouts[] = {
    {NVTE_3HD, NVTE_SBHD, NVTE_SBHD, NVTE_SBHD},                     /* SB3HD */
    {NVTE_H3D, NVTE_SBHD, NVTE_SBHD, NVTE_SBHD},                     /* SBH3D */
    {NVTE_HD_2HD, NVTE_SBHD, NVTE_SBHD, NVTE_SBHD},                  /* SBHD_SB2HD */
    {NVTE_HD_H2D, NVTE_SBHD, NVTE_SBHD, NVTE_SBHD},                  /* SBHD_SBH2D */
    {NVTE_HD_HD_HD, NVTE_SBHD, NVTE_SBHD, NVTE_SBHD},                /* SBHD_SBHD_SBHD */
    {NVTE_3HD, NVTE_BSHD, NVTE_BSHD, NVTE_BSHD},                     /* BS3HD */
    {NVTE_H3D, NVTE_BSHD, NVTE_BSHD, NVTE_BSHD},                     /* BSH3D */
    {NVTE_HD_2HD, NVTE_BSHD, NVTE_BSHD, NVTE_BSHD},                  /* BSHD_BS2HD */
    {NVTE_HD_H2D, NVTE_BSHD, NVTE_BSHD, NVTE_BSHD},                  /* BSHD_BSH2D */
    {NVTE_HD_HD_HD, NVTE_BSHD, NVTE_BSHD, NVTE_BSHD},                /* BSHD_BSHD_BSHD */
    {NVTE_3HD, NVTE_THD, NVTE_THD, NVTE_THD},                        /* T3HD */
    {NVTE_H3D, NVTE_THD, NVTE_THD, NVTE_THD},                        /* TH3D */
    {NVTE_HD_2HD, NVTE_THD, NVTE_THD, NVTE_THD},                     /* THD_T2HD */
    {NVTE_HD_H2D, NVTE_THD, NVTE_THD, NVTE_THD},                     /* THD_TH2D */
    {NVTE_HD_HD_HD, NVTE_THD, NVTE_THD, NVTE_THD},                   /* THD_THD_THD */
    {NVTE_HD_HD_HD, NVTE_SBHD_2BSHD, NVTE_SBHD, NVTE_BSHD},          /* SBHD_BSHD_BSHD */
    {NVTE_HD_HD_HD, NVTE_BSHD_2SBHD, NVTE_BSHD, NVTE_SBHD},          /* BSHD_SBHD_SBHD */
    {NVTE_HD_HD_HD, NVTE_THD_2BSHD, NVTE_THD, NVTE_BSHD},            /* THD_BSHD_BSHD */
    {NVTE_HD_HD_HD, NVTE_THD_2SBHD, NVTE_THD, NVTE_SBHD},            /* THD_SBHD_SBHD */
    {NVTE_Paged_KV_HD_HD_HD, NVTE_BSHD, NVTE_BSHD, NVTE_BSHD},       /* Paged_KV_BSHD_BSHD_BSHD */
    {NVTE_Paged_KV_HD_HD_HD, NVTE_BSHD_2SBHD, NVTE_BSHD, NVTE_SBHD}, /* Paged_KV_BSHD_SBHD_SBHD */
    {NVTE_Paged_KV_HD_HD_HD, NVTE_SBHD_2BSHD, NVTE_SBHD, NVTE_BSHD}, /* Paged_KV_SBHD_BSHD_BSHD */
    {NVTE_Paged_KV_HD_HD_HD, NVTE_SBHD, NVTE_SBHD, NVTE_SBHD},       /* Paged_KV_SBHD_SBHD_SBHD */
    {NVTE_Paged_KV_HD_HD_HD, NVTE_THD_2BSHD, NVTE_THD, NVTE_BSHD},   /* Paged_KV_THD_BSHD_BSHD */
    {NVTE_Paged_KV_HD_HD_HD, NVTE_THD_2SBHD, NVTE_THD, NVTE_SBHD},   /* Paged_KV_THD_SBHD_SBHD */
    {NVTE_SD_SD_SD, NVTE_BHSD, NVTE_BHSD, NVTE_BHSD},                /* BHSD_BHSD_BHSD */
};
static_assert(sizeof(kLayouts) / sizeof(kLayouts[0]) == NVTE_QKV_Layout_NOT_SET, "one row a layout");

const LayoutRow &row(int32_t number, const Caller &caller) {
  if (number < 0 || number >= NVTE_QKV_Layout_NOT_SET)
    fail(caller,
         text("Unsupported qkv_layout ", number, ": expected a number from 0 (NVTE_SB3HD) to 25 (NVTE_BHSD_BHSD_BHSD)",
              number == NVTE_QKV_Layout_NOT_SET ? "; set the attribute QKVLayout" : ""));
  return kLayouts[number];
}

}  // namespace

TensorLayout q_layout(int32_t layout, Caller caller) {
  const LayoutRow &entry = row(layout, caller);
  const bool all = entry.group == NVTE_3HD || entry.group == NVTE_H3D;
  return {entry.q, all ? 3 : 1, entry.group == NVTE_H3D};
}

TensorLayout kv_layout(int32_t layout, Caller caller) {
  const LayoutRow &entry = row(layout, caller);
  const bool all = entry.group == NVTE_3HD || entry.group == NVTE_H3D;
  const bool pair = entry.group == NVTE_HD_2HD || entry.group == NVTE_HD_H2D;
  return {entry.kv, all ? 3 : pair ? 2 : 1, entry.group == NVTE_H3D || entry.group == NVTE_HD_H2D};
}

bool is_paged_layout(int32_t layout, Caller caller) { return row(layout, caller).group == NVTE_Paged_KV_HD_HD_HD; }

}  // namespace chagres::reference

using namespace chagres::reference;

NVTE_QKV_Layout_Group nvte_get_qkv_layout_group(NVTE_QKV_Layout qkv_layout) {
  return row(static_cast<int32_t>(qkv_layout), Caller::here()).group;
}

NVTE_QKV_Format nvte_get_qkv_format(NVTE_QKV_Layout qkv_layout) {
  return row(static_cast<int32_t>(qkv_layout), Caller::here()).format;
}

NVTE_QKV_Format nvte_get_q_format(NVTE_QKV_Layout qkv_layout) {
  return row(static_cast<int32_t>(qkv_layout), Caller::here()).q;
}

NVTE_QKV_Format nvte_get_kv_format(NVTE_QKV_Layout qkv_layout) {
  return row(static_cast<int32_t>(qkv_layout), Caller::here()).kv;
}
