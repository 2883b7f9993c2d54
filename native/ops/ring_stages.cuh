/*
 * How many rows RowRing has on their way: one is computed, one is asked for. More were no faster on an H200, and with four packs a
 * thread would not fit into the 99 KiB that a block has on every GPU. Host and GPU compiler both read this file.
 */
#pragma once

constexpr int kRingStages = 2;
