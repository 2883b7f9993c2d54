package dev.chagres.jmh;

import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.jmh.states.LayerShape;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.stream.Stream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;

/** Values of parameters stand where people look for them, for JMH names none that it was not given. */
@Tag("L0")
class ParametersTest {
    @Test
    void thePageListsShapesAndRecipes() throws IOException {
        String page = Files.readString(Path.of("README.md"));
        Stream.concat(Arrays.stream(LayerShape.values()), Arrays.stream(LayerRecipe.values()))
                .forEach(value -> assertTrue(page.contains("`" + value + "`"), () -> "jmh/README.md lacks " + value));
    }

    @Test
    void theHelpListsShapes() throws IOException {
        String script = Files.readString(Path.of("..", "chagres"));
        for (LayerShape shape : LayerShape.values()) {
            assertTrue(script.contains(shape.name()), () -> "./chagres bench --help lacks " + shape);
        }
    }
}
