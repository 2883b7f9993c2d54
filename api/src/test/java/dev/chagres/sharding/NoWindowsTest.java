package dev.chagres.sharding;

import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.sharding.GatherRanks.NoWindows;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** The variable is named only where it is what keeps NCCL from making windows. */
@Tag("L0")
class NoWindowsTest {
    @Test
    void theReasonNamesTheVariableWhereItIsSet() {
        assertEquals("NCCL_WIN_ENABLE=0 is set", NoWindows.reason("0"));
        assertEquals("ranks cannot reach each other's memory", NoWindows.reason("1"));
        assertEquals("ranks cannot reach each other's memory", NoWindows.reason(null));
    }
}
