package dev.chagres.internal.memory;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

@Tag("L0")
class MemoryReuseTest {
    @Test
    void thePropertyTakesThreeValues() {
        assertEquals(MemoryReuse.USUAL, MemoryReuse.named("usual"));
        assertEquals(MemoryReuse.POISONED, MemoryReuse.named("Poisoned"));
        assertEquals(MemoryReuse.NEVER, MemoryReuse.named("NEVER"));
        for (String wrong : new String[] {"x", ""}) {
            var e = assertThrows(IllegalArgumentException.class, () -> MemoryReuse.named(wrong));
            assertEquals("-Dchagres.memory: expected usual, poisoned or never, got \"" + wrong + "\"", e.getMessage());
        }
    }
}
