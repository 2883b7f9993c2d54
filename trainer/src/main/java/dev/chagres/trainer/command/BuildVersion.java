package dev.chagres.trainer.command;

import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.util.Properties;
import picocli.CommandLine.IVersionProvider;

/**
 * The version that this program was built as, which Maven writes into a resource: what {@code --version} and reports name.
 *
 * <p>Threading: thread-safe.
 */
public final class BuildVersion implements IVersionProvider {
    private static final String RESOURCE = "/dev/chagres/trainer/build.properties";

    /** Returns the project's version, such as {@code 0.1.0-SNAPSHOT}. */
    public static String text() {
        var properties = new Properties();
        try (InputStream resource = BuildVersion.class.getResourceAsStream(RESOURCE)) {
            if (resource == null) {
                throw new IllegalStateException("dev/chagres/trainer/" + RESOURCE
                        + " is not on the class path; build with Maven, which writes it");
            }
            properties.load(resource);
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
        return properties.getProperty("version");
    }

    @Override
    public String[] getVersion() {
        return new String[] {"Chagres " + text()};
    }
}
