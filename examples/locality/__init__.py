"""Questions about four collections of documents, whose indexes take a while to build: who has one at hand already?"""
