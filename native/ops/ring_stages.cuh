/*
 * How many rows RowRing has on their way, by the packs P of a row that a thread keeps. More hide more of memory's latency; these
 * fit into the 99 KiB that a block has on every GPU. Host and GPU compiler both read this file.
 */
#pragma once

template <int P>
constexpr int kRingStages = P == 2 ? 4 : 2;
