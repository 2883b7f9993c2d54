package dev.chagres.internal;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.lang.foreign.MemorySegment;
import java.nio.charset.StandardCharsets;
import java.util.Random;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** What writers contribute to a block adds up to the checksum of all its bytes. */
@Tag("L0")
class BlockSumsTest {
    @Test
    void contributionsAddUp() {
        Random random = new Random(3);
        byte[] all = new byte[100_003];
        random.nextBytes(all);
        MemorySegment bytes = MemorySegment.ofArray(all);
        for (int run = 0; run < 100; run++) {
            int sum = 0;
            int count;
            for (int at = 0; at < all.length; at += count) {
                count = 1 + random.nextInt(Math.min(all.length - at, 1 << random.nextInt(17)));
                sum ^= BlockSums.contribution(bytes.asSlice(at, count), all.length - at - count);
            }
            assertEquals(BlockSums.of(bytes), sum);
        }
        assertEquals(0xE3069283, BlockSums.of(MemorySegment.ofArray("123456789".getBytes(StandardCharsets.US_ASCII))));
        assertEquals("e3069283", BlockSums.digits(0xE3069283));
        assertEquals(0xE3069283, BlockSums.sum("e3069283"));
    }
}
