# cmake --install and packages. Headers, libraries, data, and a config for find_package(Windtunnel).
include(GNUInstallDirs)
