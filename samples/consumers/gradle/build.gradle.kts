plugins {
    application
}

repositories {
    mavenCentral()
    System.getenv("CHAGRES_STAGED")?.let { maven("file://$it") }
}

dependencies {
    implementation("dev.chagres:chagres:" + (findProperty("chagres.version") ?: "0.1.0"))
}

java {
    toolchain.languageVersion = JavaLanguageVersion.of(25)
}

application {
    mainClass = "example.Example"
    applicationDefaultJvmArgs = listOf("--enable-native-access=ALL-UNNAMED")
}
