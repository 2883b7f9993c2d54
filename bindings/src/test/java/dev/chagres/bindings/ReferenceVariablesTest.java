package dev.chagres.bindings;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;

import java.nio.file.Path;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

@Tag("L0")
class ReferenceVariablesTest {
    private final FakeMachine machine = new FakeMachine(Path.of("/"));

    @ParameterizedTest
    @CsvSource({
        "CHAGRES_REFERENCE_DEVICES, a number of devices from 1 to 1024, 1025",
        "CHAGRES_THREADS, a number of threads from 1 to 512, 513",
        "CHAGRES_REFERENCE_MEMORY, a number of bytes above 0, 9223372036854775808",
        "CHAGRES_REFERENCE_NCCL_TIMEOUT, a number of seconds above 0, 2147483648"
    })
    void aWrongNumberIsRefused(String name, String expected, String tooMuch) {
        for (String wrong : new String[] {"abc", "0", "-1", "8x", tooMuch}) {
            machine.environment.put(name, wrong);
            var e = assertThrows(
                    IllegalArgumentException.class, () -> ReferenceVariables.check(machine.surroundings()), wrong);
            assertEquals("the variable " + name + ": expected " + expected + ", got \"" + wrong + "\"", e.getMessage());
        }
    }

    @Test
    void whatIsLeftOutOrRightIsTaken() {
        ReferenceVariables.check(machine.surroundings());
        machine.environment.put("CHAGRES_REFERENCE_DEVICES", "1024");
        machine.environment.put("CHAGRES_THREADS", "1");
        machine.environment.put("CHAGRES_REFERENCE_MEMORY", "17179869184");
        machine.environment.put("CHAGRES_REFERENCE_NCCL_TIMEOUT", "");
        ReferenceVariables.check(machine.surroundings());
    }
}
