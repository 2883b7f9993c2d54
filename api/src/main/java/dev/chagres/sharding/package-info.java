/**
 * Ranks and what is spread over them: threads of one program or processes that each drive a device, and the communicators between them.
 *
 * <p>Letters: N ranks, r a rank.
 */
@NullMarked
package dev.chagres.sharding;

import org.jspecify.annotations.NullMarked;
